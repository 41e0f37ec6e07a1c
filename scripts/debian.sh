# Defines functions that fetch Debian packages without root. They use apt with separate lists and settings, so that the
# machine's installed packages and lists do not change. A script that sources this file must define `work`, an empty
# folder, and the function `cannot MESSAGE`, which ends the script.

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# Address of a mirror, or empty. If it is set, own_mirror uses only this mirror, and those of the
# machine's mirrors whose addresses end in the same word as this address, such as `debian`.
own_public=

# own_begin ARCHITECTURE...: checks that the required tools and keys exist, and prepares apt's separate lists for
# packages of these architectures.
own_begin() {
    for tool in apt-get apt-cache dpkg-deb; do
        command -v "$tool" >/dev/null || cannot "there is no $tool"
    done
    [ -r $keyring ] || cannot "there is no $keyring to verify Debian's packages with"
    mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/debs" "$work/unpacked"
    : >"$work/status"
    own_architectures=$*
}

# own apt-get|apt-cache ARGUMENT...: runs the tool with the separate lists and settings in `work`.
own() {
    tool=$1
    shift
    for architecture in $own_architectures; do
        set -- -o "APT::Architectures::=$architecture" "$@"
    done
    "$tool" -q \
        -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o "Dir::State=$work" -o "Dir::State::status=$work/status" \
        -o "Dir::Cache=$work" -o APT::Sandbox::User= -o Debug::NoLocking=1 \
        -o APT::Architecture="${own_architectures%% *}" \
        -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false \
        -o Acquire::Retries=2 -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30 \
        -o APT::Update::Post-Invoke::= -o APT::Update::Post-Invoke-Success::= \
        "$@"
}

# own_mirror PACKAGE 'SUITE COMPONENT...'...: selects one of the machine's mirrors that serves the suites and has the
# package. Mirrors whose address looks like Debian's are tried first.
own_mirror() {
    wanted=$1
    shift
    # shellcheck disable=SC2016 # apt-get replaces $(SITE)
    sites=$(apt-get indextargets -o APT::Get::IndexTargets::ReleaseInfo=false --format '$(SITE)' 2>/dev/null | sort -u)
    if [ -n "$own_public" ]; then
        sites="$(echo "$sites" | grep "/${own_public##*/}/*\$" || true) $own_public"
    else
        sites=$(echo "$sites" |
            awk '/\/debian\/?($|\/)/ { print 0, $0; next } { print 1, $0 }' | sort -s -k1,1 | cut -d' ' -f2-)
    fi
    [ -n "$sites" ] || cannot 'apt has no sources on this machine'
    architectures=$(echo "$own_architectures" | tr ' ' ,)
    for site in $sites; do
        for entry; do
            echo "deb [arch=$architectures signed-by=$keyring] $site $entry"
        done >"$work/sources.list"
        # With this option, errors make the command fail. By default, apt-get update also succeeds with stale or
        # missing lists.
        if own apt-get update -o APT::Update::Error-Mode=any >"$work/log" 2>&1 &&
            own apt-cache show "$wanted" >/dev/null 2>&1; then
            return
        fi
    done
    cannot "no mirror known here serves $1 ($(grep -m1 '^[EW]:' "$work/log" || echo "no $wanted in it"))"
}

# own_fetch OPTION... PACKAGE...: downloads packages and unpacks them into $work/unpacked.
own_fetch() {
    (cd "$work/debs" && own apt-get download "$@") >"$work/log" 2>&1 ||
        cannot "cannot download $* ($(grep -m1 '^[EW]:' "$work/log" || true))"
    own_unpack "$work"/debs/*.deb
}

own_unpack() {
    for deb; do
        dpkg-deb -x "$deb" "$work/unpacked" || cannot "cannot unpack ${deb##*/}"
        rm "$deb"
    done
}

# own_family FAMILY FOLDER KEYRINGS: makes the functions above fetch packages of Debian or Ubuntu
# (FAMILY) for $architecture, in FOLDER. Their signatures are checked with the distribution's keys.
# Debian has a package with Ubuntu's keys, and Ubuntu has one with Debian's. If this machine lacks
# the keys, one process fetches them into KEYRINGS, and other processes wait.
own_family() {
    (
        exec 8>"$3/.$1-keyring.lock"
        flock 8
        keyring=$3/.$1-archive-keyring.gpg
        if [ -r "/usr/share/keyrings/${keyring##*/.}" ] || [ -r "$keyring" ]; then
            exit
        fi
        case $1 in
        ubuntu)
            own_begin_family debian "$2.keyring" "$3"
            own_mirror ubuntu-keyring 'trixie main'
            own_fetch ubuntu-keyring
            ;;
        debian)
            own_begin_family ubuntu "$2.keyring" "$3"
            own_mirror debian-archive-keyring 'noble universe'
            own_fetch debian-archive-keyring
            ;;
        esac
        cp "$work/unpacked/usr/share/keyrings/$1-archive-keyring.gpg" "$3/.$1-archive-keyring.gpg"
    )
    own_begin_family "$@"
}

own_begin_family() {
    work=$2
    keyring=/usr/share/keyrings/$1-archive-keyring.gpg
    [ -r "$keyring" ] || keyring=$3/.$1-archive-keyring.gpg
    case $1:$architecture in
    "$(sed -n 's/^ID=//p' /etc/os-release 2>/dev/null || true):$architecture") own_public='' ;;
    debian:*) own_public=http://deb.debian.org/debian ;;
    ubuntu:amd64) own_public=http://archive.ubuntu.com/ubuntu ;;
    ubuntu:*) own_public=http://ports.ubuntu.com/ubuntu-ports ;;
    esac
    own_begin "$architecture"
}
