# Runs a setuid program. The loader silently ignores a preload that is given by path for such a program.
[ -u /usr/bin/su ] && su --version
[ "$(id -u)" = 0 ] || { echo 'skipped: only root can make a program setuid'; exit 77; }
command -v setpriv > /dev/null || { echo 'skipped: no setpriv'; exit 77; }
folder=$(mktemp -d) || exit
trap 'rm -rf "$folder"' EXIT
case ,$(findmnt -n -o OPTIONS -T "$folder"), in
*,nosuid,*) echo "skipped: ${folder%/*} is mounted nosuid"; exit 77 ;;
esac
cp "$(command -v id)" "$folder/id"
chmod 755 "$folder"
chmod 4755 "$folder/id"
setpriv --reuid 65534 --regid 65534 --clear-groups "$folder/id" -u; echo "id: $?"
setpriv --reuid 65534 --regid 65534 --clear-groups "$folder/id" --absent 2> /dev/null; echo "wrong: $?"
