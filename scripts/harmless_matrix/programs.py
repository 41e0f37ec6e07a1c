"""The programs that run with and without the library. Each does much of its usual work, prints the result, and
ends."""
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SOURCES = os.path.join(HERE, "programs")


@dataclass
class Program:
    name: str
    run: object                  # a command line for bash, or a list of arguments
    packages: tuple = ()         # Debian packages
    needs: tuple = ()            # commands that must exist; default: the first word
    is_heavy: bool = False       # takes seconds, so it runs only in a few surroundings
    is_slow: bool = False        # takes many seconds, so it runs after other programs
    is_quick: bool = False       # also runs with --quick
    uses: str = ""               # "cuda" or "python" if the program uses what the library hooks
    variables: dict = field(default_factory=dict)
    timeout: int = 60
    source: str = ""             # file in `programs` that is also built with sanitizers
    left_out: str = ""
    # True if the number of the program's threads or processes depends on the number of processors.
    # With repr=False, this field does not change the key under which outcomes of earlier runs are
    # stored.
    is_elastic: bool = field(default=False, repr=False)

    @property
    def is_direct(self):
        """True if the program is started directly and not by a shell."""
        return not isinstance(self.run, str)

    def argv(self):
        return list(self.run) if self.is_direct else ["bash", "--norc", "-c", self.run]

    def commands(self):
        first = [] if self.needs else [self.argv()[0] if self.is_direct else self.run.split()[0]]
        return [*self.needs, *first]


def quick(*arguments, **more):
    return Program(*arguments, is_quick=True, **more)


def heavy(*arguments, **more):
    return Program(*arguments, is_heavy=True, **more)


# A shell command that writes the file `text`, which many of the programs below read.
TEXT = "seq -f '%g line of text' 1 2000 >text; "
UNTIL = "until {0} 2>/dev/null; do kill -0 $! 2>/dev/null || break; sleep 0.05; done; "

TABLE = [
    # ---- the shell and standard tools
    quick("bash",
          "set -o pipefail; echo out; echo err >&2; (exit 3) | cat; echo ${PIPESTATUS[@]}; coproc cat; "
          "echo x >&${COPROC[1]}; "
          "read -u ${COPROC[0]} y; echo $y; trap 'echo usr1' USR1; kill -USR1 $$; sleep 0.05 & wait $!; echo $?; "
          "diff <(echo a) <(echo b); ls /proc/self/fd | wc -l; ulimit -n; exec 5>file; echo five >&5; exit 7",
          needs=("bash",)),
    Program("dash", "dash -c 'x=$(seq 500 | sort -rn | head -n 3); echo $x; trap \"echo bye\" EXIT; (exit 4); exit $?'"),
    Program("zsh", "zsh -f -c 'a=({1..50}); print ${(j:,:)a}; print -l **/*(N); (sleep 0.01 &); zmodload zsh/zpty; exit 3'",
            packages=("zsh",)),
    Program("fish", "fish --no-config -c 'for i in (seq 20); echo $i; end | string join ,; status is-interactive; exit 4'",
            packages=("fish",)),
    quick("coreutils", TEXT + "sort -R --random-source=text text | sort -n | md5sum; wc text; split -l 500 text part.; "
                              "ls; cat part.* | cmp - text; "
          "tac text | head -n 2; comm -3 <(sort text) <(sort part.aa) | wc -l; timeout 0.05 sleep 9; echo $?; "
          "stat -c %s text; "
          "cp -a text copy; mv copy moved; ln -s moved link; readlink -f link; nl text | tail -n 1; factor 1234567890; "
          "nohup true; env -i env"),
    Program("findutils",
            "mkdir -p a/b/c; touch a/1 a/b/2 a/b/c/3; find . -type f -print0 | sort -z | xargs -0 -n 1 -P 2 echo | sort; "
            "find a -delete; find nothing; echo $?", needs=("find",)),
    Program("grep", TEXT + "grep -c 1 text; grep -E '^(12|9)+ ' text; grep -P '(?<=1)9 ' text | head -n 5; "
                           "grep nothing text; echo $?", needs=("grep",)),
    Program("sed", TEXT + "sed -n -e '5,9{s/line/LINE/;p}' -e '$=' text; sed -i.old 10d text; cmp text text.old; ls",
        needs=("sed",)),
    quick("awk", TEXT + "awk '{ s += $1; w[$2]++ } END { print s; for (i in w) print i, w[i]; system(\"echo sub\"); "
                        "\"date +%%\" | getline d; print d }' text",
          needs=("awk",)),
    Program("gawk", TEXT + "gawk 'BEGIN { PROCINFO[\"sorted_in\"] = \"@ind_num_asc\" } { a[$1 % 7] += $1 } END { for (i "
                           "in a) print i, a[i]; print strtonum(\"0x1f\") |& \"cat\"; close(\"cat\", \"to\"); "
                           "\"cat\" |& getline x; print x }' text",
            packages=("gawk",), needs=("gawk",)),
    Program("diffutils", TEXT + "sed 's/^7/x/' text >other; diff -u text other | grep -c '^[-+]'; "
                                "diff3 text other text | head -n 3; diff text other >patch.diff; "
                                "patch text patch.diff && cmp text other; echo $?",
            needs=("diff", "patch")),
    Program("m4",
            "echo 'define(f,`ifelse($1,0,1,`eval($1*f(decr($1)))'\"'\"')'\"'\"')f(10) esyscmd(echo sub)' | m4",
            packages=("m4",), needs=("m4",)),
    Program("bc", "echo 'scale=200; 4*a(1); 2^500' | bc -l", packages=("bc",), needs=("bc",)),
    Program("busybox",
            "busybox sh -c 'seq 100 | busybox awk \"{s+=\\$1} END {print s}\"; echo page >p; "
            "busybox httpd -f -p 8081 -h . & until busybox wget -q -O - http://127.0.0.1:8081/p 2>/dev/null; "
            "do busybox sleep 0.1; done; kill $!; wait; exit 6'; echo $?",
            packages=("busybox",)),
    Program("ed", "printf 'a\\none\\ntwo\\n.\\n1,$s/o/0/g\\nw out\\nq\\n' | ed -s; cat out", packages=("ed",), needs=("ed",)),
    Program("expect",
            "expect -c 'log_user 1; spawn -noecho sh -c \"read x; echo got \\$x; exit 5\"; send \"hello\\r\"; "
            "expect \"got hello\"; expect eof; exit [lindex [wait] 3]'",
            packages=("expect",)),
    Program("tmux",
            "tmux -f /dev/null -L one new-session -d -s s -x 80 -y 24 'echo in tmux; tty >/dev/null && echo a terminal; "
            "sleep 60'; "
            "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 0.1; "
            "tmux -L one capture-pane -p -t s | grep -q terminal && break; done; "
            "tmux -L one capture-pane -p -t s | head -n 2; tmux -L one split-window -t s 'sleep 60'; "
            "tmux -L one list-panes -t s -F '#{pane_index} #{pane_width}'; tmux -L one kill-server; sleep 0.2",
            packages=("tmux",), variables={"TERM": "screen"}),
    Program("screen", "screen -v; screen -ls; echo $?", packages=("screen",), variables={"SCREENDIR": "/tmp/work/home/screens"}),
    Program("script",
            "script -qec 'tty >/dev/null && echo a terminal; stty -a | head -n 1; exit 4' /dev/null; echo $?",
            needs=("script",)),
    # ---- files
    quick("tar", TEXT + "mkdir d; cp text d; ln -s text d/link; tar -cf a.tar --sort=name --mtime=@0 d; "
                        "tar -tvf a.tar --numeric-owner; md5sum <a.tar; tar -czf a.tgz d; rm -r d; tar -xf a.tgz; "
                        "cmp d/text text; tar -xf nothing.tar; echo $?",
          needs=("tar", "gzip")),
    Program("xz", TEXT + "xz -T2 -k text; xz -t text.xz; xz -dc text.xz | cmp - text; xz -l text.xz; xz -d text; echo $?",
        needs=("xz",)),
    Program("zstd", TEXT + "zstd -q -T4 -19 text -o text.zst; zstd -dc text.zst | cmp - text; "
                           "ls -l text.zst | cut -d' ' -f5; zstd -q --train text text.zst -o dict; echo $?",
            packages=("zstd",), needs=("zstd",)),
    Program("bzip2, lz4, brotli, pigz", TEXT + "bzip2 -k text; bzip2 -dc text.bz2 | cmp - text; lz4 -q text text.lz4; "
                                               "lz4 -dc text.lz4 | cmp - text; brotli text; "
                                               "brotli -dc text.br | cmp - text; pigz -n -p 3 -k text; "
                                               "pigz -dc text.gz | cmp - text; ls",
            packages=("bzip2", "lz4", "brotli", "pigz"), needs=("bzip2", "lz4", "brotli", "pigz")),
    Program("zip, 7z", TEXT + "TZ=UTC touch -t 202001010000 text; zip -qX a.zip text; unzip -l a.zip; "
                              "7zr a -bd -mmt=2 a.7z text | grep -E 'Everything'; 7zr t -bd a.7z | grep Ok",
            packages=("zip", "unzip", "p7zip"), needs=("zip", "unzip", "7zr")),
    Program("cpio", TEXT + "echo text | cpio -o --reproducible >a.cpio; cpio -t <a.cpio",
        packages=("cpio",), needs=("cpio",)),
    Program("rsync", TEXT + "mkdir -p from/deep; cp text from/deep; "
                            "rsync -a --stats from/ to/ | grep files:; echo more >>from/deep/text; "
                            "rsync -ain --no-times --checksum from/ to/; rsync -a nothing to; echo $?; "
                            "cmp from/deep/text to/deep/text",
            packages=("rsync",), needs=("rsync",)),
    Program("file", TEXT + "file -b text /bin/ls; file -bi text", packages=("file",), needs=("file",)),
    Program("git",
            "export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z' GIT_CONFIG_COUNT=2 "
            "GIT_CONFIG_KEY_0=user.name GIT_CONFIG_VALUE_0=n GIT_CONFIG_KEY_1=user.email GIT_CONFIG_VALUE_1=e; "
            + TEXT + "git init -q -b main r; cd r; cp ../text .; git add text; git commit -q -m one; "
                     "git checkout -q -b side; echo x >>text; git commit -qam two; git checkout -q main; "
                     "git merge -q --no-edit side; git log --oneline; git gc -q; git fsck; git clone -q . ../c; "
                     "git -C ../c status -sb; printf 'pick\\n' | git rebase -q side; git grep -c line; git show nothing; "
                     "exit $?",
            needs=("git",)),
    # ---- text, images, audio
    quick("jq",
          "seq 1 500 | jq -s 'map(. * 2) | {sum: add, last: .[-1], text: (.[0:3] | tostring)}'; echo '{' | jq .; exit $?",
          packages=("jq",), needs=("jq",)),
    Program("ripgrep, fd", TEXT + "mkdir d; cp text d; rg --no-messages -c 'line' | sort; rg -j4 '^19' text | head -n 3; "
                                  "fdfind text | sort; rg nothing; exit $?",
            packages=("ripgrep", "fd-find"), needs=("rg", "fdfind")),
    Program("libxml2",
            "echo '<a><b n=\"1\">x</b><b/></a>' >d.xml; xmllint --format --xpath '//b/@n' d.xml; echo; "
            "xmllint --c14n d.xml; echo '<a>' | xmllint -; exit $?",
            packages=("libxml2-utils",), needs=("xmllint",)),
    Program("graphviz",
            "dot -c; echo 'digraph { a -> b -> c; a -> c }' | dot -Tplain", packages=("graphviz",), needs=("dot",)),
    Program("ffmpeg",
            "ffmpeg -nostdin -v error -f lavfi -i testsrc=d=0.4:s=160x120 -c:v mpeg4 -threads 2 -bitexact a.avi; "
            "ffprobe -v error -show_entries stream=codec_name,nb_frames -of csv a.avi; "
            "ffmpeg -nostdin -v error -i a.avi -f framemd5 -bitexact - | tail -n 3; ffmpeg -v error -i nothing; exit $?",
            packages=("ffmpeg",), needs=("ffmpeg",), is_heavy=True),
    Program("ImageMagick",
            "convert-im6.q16 -size 64x64 gradient:red-blue -rotate 30 -depth 8 out.ppm; md5sum out.ppm; "
            "identify-im6.q16 out.ppm | cut -d' ' -f1-3",
            packages=("imagemagick",), needs=("convert-im6.q16",), is_heavy=True),
    Program("Ghostscript",
            "printf '%%!PS\\n/n 0 def 1 1 100 { n add /n exch def } for n = flush\\n100 100 moveto 200 200 lineto stroke "
            "showpage\\n' >a.ps; gs -q -dBATCH -dNOPAUSE -dSAFER -sDEVICE=pgmraw -r20 -sOutputFile=a.pgm a.ps; "
            "md5sum a.pgm | cut -d' ' -f1",
            packages=("ghostscript",), needs=("gs",), is_heavy=True),
    Program("gnuplot",
            "gnuplot-nox -e 'set terminal dumb 60 20; plot sin(x)'", packages=("gnuplot-nox",), needs=("gnuplot-nox",)),
    Program("sox",
            "sox -n -r 8000 a.wav synth 0.2 sine 440; sox a.wav -n stat 2>&1 | grep -i -E 'length|maximum a'",
            packages=("sox",), needs=("sox",)),
    Program("vim",
            "printf 'one\\ntwo\\n' >t; vim.tiny -N -u NONE -i NONE -es -c '%s/o/0/g' -c 'wq' t </dev/null; cat t",
            packages=("vim-tiny",), needs=("vim.tiny",)),
    # ---- languages
    quick("perl",
          "perl -MPOSIX -MList::Util=sum -e 'print sum(map { $_ ** 2 } 1..1000), \"\\n\"; my $p = fork; "
          "if (!$p) { POSIX::_exit(5) } waitpid $p, 0; print $? >> 8, \"\\n\"; $SIG{ALRM} = sub { print \"alarm\\n\"; "
          "exit 8 }; alarm 100; select undef, undef, undef, 0.01; print `echo sub`; "
          "open my $f, \"<\", \"/nothing\" or print \"$!\\n\"; kill ALRM => $$; sleep 5'"),
    Program("Ruby",
            "ruby -e 'puts (1..2000).map { |x| x * x }.sum; ts = 4.times.map { |i| Thread.new { i * 2 } }; "
            "p ts.map(&:value); GC.start; pid = fork { exit! 3 }; Process.wait pid; p $?.exitstatus; require \"json\"; "
            "puts JSON.generate({a: [1, 2]}); f = Fiber.new { Fiber.yield 1; 2 }; p f.resume, f.resume; abort \"end\"'",
            packages=("ruby",), needs=("ruby",)),
    Program("Lua",
            "lua5.4 -e 'local t = {} for i = 1, 2000 do t[#t + 1] = i * i end print(#t, table.concat(t, \",\", 1, 5)) "
            "print(pcall(error, \"x\")) local f = io.popen(\"echo sub\") print(f:read(\"a\")) collectgarbage() "
            "print(os.execute(\"exit 3\")) os.exit(9)'",
            packages=("lua5.4",), needs=("lua5.4",)),
    Program("LuaJIT",
            "luajit -e 'local ffi = require \"ffi\" ffi.cdef \"int getpagesize(void); "
            "double sqrt(double);\" print(ffi.C.getpagesize(), ffi.C.sqrt(2)) local s = 0 for i = 1, 1e6 do s = s + i end "
            "print(s) print(pcall(function() ffi.C.nothing() end)) os.exit(3)'",
            packages=("luajit",), needs=("luajit",)),
    Program("PHP",
            "php8.2 -n -r '$a = array_map(fn($x) => $x ** 2, range(1, 1000)); echo array_sum($a), \"\\n\"; "
            "echo json_encode([\"a\" => 1]), \"\\n\"; echo shell_exec(\"echo sub\"); gc_collect_cycles(); "
            "try { intdiv(1, 0); } catch (Error $e) { echo $e->getMessage(), \"\\n\"; } fwrite(STDERR, \"err\\n\"); "
            "exit(7);'",
            packages=("php8.2-cli",), needs=("php8.2",)),
    Program("Tcl",
            "echo 'puts [expr {2**100}]; puts [exec echo sub]; after 10 {set x 1}; vwait x; catch {error no} m; puts $m; "
            "exit 4' >t.tcl; tclsh t.tcl; exit $?",
            packages=("tcl",), needs=("tclsh",)),
    Program("Guile",
            "guile-3.0 --no-auto-compile -c '(use-modules (ice-9 threads)) (display (apply + (par-map (lambda (x) (* x "
            "x)) (iota 100)))) (newline) (gc) (exit 5)'; exit $?",
            packages=("guile-3.0",), needs=("guile-3.0",)),
    Program("SBCL",
            "sbcl --noinform --no-userinit --disable-debugger --eval '(progn (print (loop for i below 100000 sum i)) (gc "
            ":full t) (terpri) (handler-case (error \"no\") (error (e) (print (type-of e)))) (exit :code 6))'; exit $?",
            packages=("sbcl",), needs=("sbcl",), is_heavy=True),
    Program("SWI-Prolog",
            "swipl -q -g 'findall(X, between(1, 100, X), L), length(L, N), print(N), nl, thread_create(true, T), "
            "thread_join(T), garbage_collect, halt(3)'; exit $?",
            packages=("swi-prolog-nox",), needs=("swipl",), is_heavy=True),
    Program("GNU Prolog",
            "echo ':- initialization((X is 2 ** 20, write(X), nl, halt)).' >p.pl; "
            "PATH=$PATH:/usr/lib/gprolog/bin gprolog --consult-file p.pl </dev/null | sed 's/, [0-9]* ms$//'; "
            "exit ${PIPESTATUS[0]}",
            packages=("gprolog",), needs=("/usr/lib/gprolog/bin/gprolog",)),
    Program("Erlang",
            "erl -noshell -eval 'P = self(), [spawn(fun() -> P ! X * X end) || X <- lists:seq(1, 100)], S = "
            "lists:sum([receive Y -> Y end || _ <- lists:seq(1, 100)]), io:format(\"~p~n\", [S]), io:format(\"~s\", "
            "[os:cmd(\"echo sub\")]), erlang:garbage_collect(), halt(4).'; exit $?",
            packages=("erlang-base",), needs=("erl",), is_heavy=True),
    Program("OCaml",
            "echo 'let rec f n = if n < 2 then n else f (n-1) + f (n-2);; let () = Gc.full_major (); "
            "Printf.printf \"%d\\n\" (f 22); (try ignore (List.hd []) with Failure m -> print_endline m); exit 3' >f.ml; "
            "ocamlc -o f f.ml && ./f; echo $?; ocaml f.ml; exit $?",
            packages=("ocaml-nox",), needs=("ocaml", "ocamlc"), is_heavy=True),
    Program("R",
            "touch /etc/R/Renviron; R --vanilla --no-echo -e 'x <- 1:1000; print(summary(lm(x ~ I(x^2)))$r.squared); "
            "print(sum(x)); invisible(gc()); m <- matrix(1:9, 3) %*% diag(3); print(m); "
            "cat(system(\"echo sub\", intern = TRUE), \"\\n\"); "
            "tryCatch(stop(\"no\"), error = function(e) print(conditionMessage(e))); quit(status = 5)'; exit $?",
            packages=("r-base-core",), needs=("R",), is_heavy=True, variables={"R_LIBS": "/usr/lib/R/library"}),
    Program("Octave",
            "octave-cli --no-init-file --quiet --eval 'disp(sum((1:1000).^2)); A = magic(4); disp(det(A(1:3,1:3))); "
            "[s, o] = system(\"echo sub\"); printf(\"%s\", o); exit(4)'; exit $?",
            packages=("octave",), needs=("octave-cli",), is_heavy=True),
    Program("GHC",
            "echo 'main = do { print (sum [x * x | x <- [1 .. 1000 :: Integer]]); mapM_ print (take 3 (cycle \"ab\")); "
            "error \"end\" }' >M.hs; ghc-pkg recache --global; ghc -v0 -O0 M.hs && ./M 2>&1; exit $?",
            packages=("ghc",), needs=("ghc",), is_heavy=True),
    Program("Mono",
            "echo 'using System; using System.Threading.Tasks; class M { static int Main() { long s = 0; for (int i = 0; "
            "i < 1000000; i++) s += i; Console.WriteLine(s); GC.Collect(); Console.WriteLine(Task.Run(() => 42).Result); "
            "try { throw new Exception(\"no\"); } catch (Exception e) { Console.WriteLine(e.Message); } return 3; "
            "} }' >m.cs; mcs m.cs && mono m.exe; exit $?",
            packages=("mono-mcs", "mono-runtime", "libmono-system-core4.0-cil"), needs=("mcs", "mono"), is_heavy=True),
    Program("Java",
            "mkdir t; cat >t/M.java <<'J'\nimport java.util.stream.*;\npublic class M { public static void main(String[] "
            "a) throws Exception {\n System.out.println(LongStream.range(0, 1000000).parallel().sum());\n System.gc(); "
            "Thread t = new Thread(() -> System.out.println(\"thread\")); t.start(); "
            "t.join();\n Process p = new ProcessBuilder(\"echo\", \"sub\").inheritIO().start(); "
            "System.out.println(p.waitFor());\n try { Object o = null; o.hashCode(); "
            "} catch (NullPointerException e) { System.out.println(\"null\"); }\n System.exit(6); "
            "} }\nJ\njava -XX:+UseSerialGC -Xshare:auto t/M.java; exit $?",
            packages=("openjdk-17-jdk-headless",), needs=("java",), is_heavy=True),
    Program("Node",
            "node -e 'const { Worker } = require(\"worker_threads\"); const z = require(\"zlib\"); "
            "console.log(z.gunzipSync(z.gzipSync(\"text\")).toString(), [...Array(1000).keys()].reduce((a, b) => a + b)); "
            "console.log(require(\"child_process\").execSync(\"echo sub\").toString()); "
            "new Worker(\"process.exit(3)\", { eval: true }).on(\"exit\", c => { console.log(c); "
            "setTimeout(() => process.exit(5), 20); }); "
            "require(\"fs\").readFile(\"/nothing\", e => console.error(e.code))'; exit $?",
            needs=("node",), is_heavy=True),
    Program("Go",
            "mkdir m; cd m; cat >main.go <<'G'\npackage main\n\nimport "
            "(\n\t\"fmt\"\n\t\"os\"\n\t\"os/exec\"\n\t\"runtime\"\n\t\"sync\"\n)\n\nfunc main() {\n\tvar all "
            "sync.WaitGroup\n\tsums := make([]int, 50)\n\tfor i := range sums {\n\t\tall.Add(1)\n\t\tgo func(i int) { "
            "defer all.Done(); for j := 0; j < 10000; j++ { sums[i] += j }; "
            "runtime.Gosched() }(i)\n\t}\n\tall.Wait()\n\truntime.GC()\n\tout, err := exec.Command(\"echo\", "
            "\"sub\").Output()\n\tfmt.Println(sums[49], string(out), err)\n\tdefer func() { fmt.Println(recover()); "
            "os.Exit(4) }()\n\tvar none *int\n\tfmt.Println(*none)\n}\nG\ncat >go.mod <<'G'\nmodule m\n\ngo 1.18\nG\ngo "
            "build -p 2 -o main . && ./main; status=$?; rm -rf ~/.cache; exit $status",
            packages=("golang-go",), needs=("go",), is_heavy=True, is_elastic=True,
            variables={"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTELEMETRY": "off"}),
    Program("rustc",
            "echo 'use std::thread; fn main() { let t: Vec<_> = (0..4).map(|i| thread::spawn(move || i * i)).collect(); "
            "println!(\"{:?}\", t.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()); "
            "let r = std::panic::catch_unwind(|| panic!(\"no\")); println!(\"{}\", r.is_err()); "
            "std::process::exit(3) }' >m.rs; rustc -O m.rs && ./m; echo $?; echo 'fn main() { x }' >b.rs; rustc b.rs; "
            "exit $?",
            needs=("rustc",), is_heavy=True, is_elastic=True),
    Program("gcc",
            "echo '#include <stdio.h>\nint main(void) { printf(\"%d\\n\", __LINE__); return 3; }' >m.c; "
            "gcc -O2 -Wall -g m.c -o m && ./m; echo $?; echo 'int f(' | gcc -xc - ; echo $?; "
            "gcc -O2 -flto m.c -o l && ./l; objdump -d m | grep -c call; strip m; readelf -h m | grep Type", needs=("gcc",)),
    Program("g++",
            "echo '#include <iostream>\n#include <map>\n#include <stdexcept>\nint main() { std::map<int, int> m; "
            "for (int i = 0; i < 9; i++) m[i] = i; try { m.at(99); "
            "} catch (const std::out_of_range &) { std::cout << m.size() << \"\\n\"; } return 4; }' >m.cc; "
            "g++ -O1 m.cc -o m && ./m; exit $?",
            needs=("g++",), is_heavy=True),
    Program("clang",
            "echo '#include <string.h>\nint main(int c, char **v) { return c + (int)strlen(v[0]); }' >m.c; "
            "clang-14 -O2 m.c -o m && ./m; echo $?; clang-14 -fsyntax-only -xc - <<<'int f('; echo $?",
            packages=("clang-14",), needs=("clang-14",)),
    quick("make",
          "printf 'all: a b\\n\\t@echo all\\na b:\\n\\t@echo $@ >$@; sleep 0.02\\nbad:\\n\\t@exit 3\\n' >Makefile; "
          "make -j3 -O; make bad; echo $?; make -n -B | sort; make nothing; exit $?", needs=("make",)),
    Program("cmake, ninja",
            "printf 'cmake_minimum_required(VERSION 3.10)\\nproject(p C)\\nadd_executable(p p.c)\\n' >CMakeLists.txt; "
            "echo 'int main(void) { return 3; }' >p.c; cmake -G Ninja -B b . | grep -v 'done ('; ninja -C b | tail -n 1; "
            "b/p; exit $?",
            packages=("cmake", "ninja-build"), needs=("cmake", "ninja"), is_heavy=True),
    Program("bison, flex",
            "printf '%%token A\\n%%%%\\ns: A s | A;\\n' >g.y; bison -v g.y; tail -n 3 g.output; "
            "printf '%%%%\\n[0-9]+ ECHO;\\n' >l.l; flex -t l.l | wc -l",
            packages=("bison", "flex"), needs=("bison", "flex")),
    Program("gdb, as a program",
            "echo 'int f(int n) { return n + 1; } int main(void) { return f(4); }' >m.c; gcc -g m.c -o m; "
            "gdb -nx -q -batch -ex 'break f' -ex run -ex bt -ex 'python print(sum(range(10)))' -ex finish -ex continue m; "
            "exit $?",
            needs=("gdb", "gcc"), is_heavy=True, uses="python"),
    # ---- servers
    quick("SQLite",
          "sqlite3 t.db 'create table t(a integer primary key, b); "
          "with recursive n(i) as (select 1 union all select i + 1 from n where i < 5000) insert into t select i, i * i "
          "from n; select count(*), sum(b) from t; create index i on t(b); pragma integrity_check; "
          "select nothing from t;'; echo $?; sqlite3 t.db 'vacuum; select max(b) from t'",
          packages=("sqlite3",), needs=("sqlite3",)),
    Program("Redis",
            "redis-server --port 6390 --save '' --appendonly yes --daemonize no --loglevel warning --io-threads 2 >log "
            "2>&1 & " + UNTIL.format("redis-cli -p 6390 ping >/dev/null")
            + "redis-cli -p 6390 set a 1; for i in 1 2 3; do redis-cli -p 6390 incr a; done; "
                "redis-cli -p 6390 eval 'return redis.call(\"get\", \"a\")' 0; "
                "seq 1 500 | sed 's/.*/rpush l &/' | redis-cli -p 6390 --pipe | tail -n 1; "
                "redis-cli -p 6390 bgrewriteaof; redis-cli -p 6390 lrange l 0 2; redis-cli -p 6390 shutdown nosave; "
                "wait $!; echo $?; rm -rf appendonlydir log",
            packages=("redis-server",), needs=("redis-server", "redis-cli"), is_heavy=True),
    Program("PostgreSQL",
            "b=/usr/lib/postgresql/15/bin; u=; [ $(id -u) = 0 ] && u='setpriv --reuid 1 --clear-groups --inh-caps=-all'; "
            "mkdir -m 777 d; "
            "as() { if [ -n \"$u\" ]; then unshare -U --map-user=1000 --map-group=1000 \"$@\"; else \"$@\"; fi; }; "
            "as $b/initdb -D d/data -U me -A trust --no-sync --locale=C >/dev/null; "
            "as $b/pg_ctl -D d/data -w -l d/log -o \"-k $PWD/d -p 5499\" start; "
            "q() { as $b/psql -h $PWD/d -p 5499 -U me -d postgres -At -c \"$1\"; }; "
            "q 'create table t as select i, i * i as s from generate_series(1, 5000) i'; "
            "q 'select count(*), sum(s) from t'; q 'create index on t(s); analyze t'; q \"select 1/0\"; "
            "q 'set max_parallel_workers_per_gather = 2; select md5(string_agg(s::text, chr(44) order by i)) from t'; "
            "as $b/pg_ctl -D d/data -m fast stop; echo $?; grep -c FATAL d/log; rm -rf d",
            packages=("postgresql-15",), needs=("/usr/lib/postgresql/15/bin/initdb",), is_heavy=True),
    Program("nginx",
            "mkdir -p logs www; echo page >www/p; printf 'daemon off; user root; worker_processes 2; pid n.pid; "
            "error_log /dev/null; events {} http { access_log off; client_body_temp_path t1; proxy_temp_path t2; "
            "fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5; server { listen 127.0.0.1:8099; root www; "
            "} }' >n.conf; "
            "nginx -p $PWD -c n.conf & until curl -s -o /dev/null http://127.0.0.1:8099/p; do kill -0 $! 2>/dev/null || break; sleep 0.05; done; "
            "curl -s http://127.0.0.1:8099/p http://127.0.0.1:8099/nothing | tail -n 3; "
            "curl -sI http://127.0.0.1:8099/p | head -n 1; kill -HUP $(cat n.pid); sleep 0.3; "
            "curl -s http://127.0.0.1:8099/p; kill -QUIT $(cat n.pid); wait; echo $?",
            packages=("nginx-light",), needs=("nginx", "curl")),
    Program("lighttpd",
            "mkdir w; echo page >w/p; "
            "printf 'server.document-root = \"/tmp/work/w\"\\nserver.port = 8098\\nserver.bind = \"127.0.0.1\"\\n' "
            ">l.conf; lighttpd -D -f l.conf 2>log & until curl -s -o /dev/null http://127.0.0.1:8098/p; do kill -0 $! 2>/dev/null || break; sleep 0.05; "
            "done; curl -s http://127.0.0.1:8098/p; kill $!; "
            "wait $!; [ $? -le 1 ] && echo ended",  # its exit status is 0 or 1 by chance
            packages=("lighttpd",), needs=("lighttpd", "curl")),
    Program("memcached",
            "memcached -u root -l 127.0.0.1 -p 11299 -t 2 & until echo version | socat - TCP:127.0.0.1:11299 >/dev/null "
            "2>&1; do kill -0 $! 2>/dev/null || break; sleep 0.05; done; "
            "printf 'set a 0 0 2\\r\\nhi\\r\\nget a\\r\\nquit\\r\\n' | socat - TCP:127.0.0.1:11299; kill $!; wait $!; "
            "echo $?",
            packages=("memcached", "socat"), needs=("memcached", "socat")),
    Program("curl",
            "mkdir w; seq 1000 >w/p; cd w; "
            "/usr/bin/python3 -I -m http.server --bind 127.0.0.1 8097 >/dev/null 2>&1 & until curl -s -o /dev/null "
            "http://127.0.0.1:8097/p; do kill -0 $! 2>/dev/null || break; sleep 0.05; done; curl -s http://127.0.0.1:8097/p | md5sum; "
            "curl -sS -Z --no-progress-meter http://127.0.0.1:8097/p -o 1 http://127.0.0.1:8097/p -o 2; cmp 1 2; "
            "curl -sS -f http://127.0.0.1:8097/nothing; echo $?; curl -sS http://127.0.0.1:1/ 2>&1 | sed 's/ after [0-9]* ms//'; "
            "echo ${PIPESTATUS[0]}; kill $!; wait $!; "
            "exit $?",
            packages=("curl",), needs=("curl", "/usr/bin/python3")),
    Program("socat",
            "socat -u OPEN:/dev/null STDOUT; echo text | socat - EXEC:cat; "
            "socat -T 1 TCP-LISTEN:8096,reuseaddr,bind=127.0.0.1 EXEC:'tr a-z A-Z' & sleep 0.2; "
            "echo hello | socat -t 1 - TCP:127.0.0.1:8096; wait; echo $?",
            packages=("socat",), needs=("socat",)),
    Program("OpenSSL",
            "openssl version; echo text | openssl dgst -sha256; openssl genpkey -algorithm ED25519 -out k; "
            "openssl req -x509 -key k -subj /CN=n -days 1 -out c; openssl verify -CAfile c c; "
            "openssl enc -aes-256-cbc -pbkdf2 -k k -in c | openssl enc -d -aes-256-cbc -pbkdf2 -k k | cmp - c; "
            "openssl s_server -quiet -accept 8095 -key k -cert c >/dev/null 2>&1 & "
            "until echo Q | openssl s_client -connect 127.0.0.1:8095 >/dev/null 2>&1; do kill -0 $! 2>/dev/null || break; sleep 0.05; done; "
            "echo Q | openssl s_client -connect 127.0.0.1:8095 -CAfile c 2>/dev/null | grep 'Verification:'; kill $!; "
            "rm k c",
            needs=("openssl",)),
    Program("ssh-keygen",
            "ssh-keygen -q -t ed25519 -N '' -C c -f k; ssh-keygen -y -f k | cmp - k.pub; echo data >d; "
            "ssh-keygen -q -Y sign -n file -f k d; echo \"me $(cat k.pub)\" >allowed; "
            "ssh-keygen -Y verify -f allowed -I me -n file -s d.sig <d | cut -d' ' -f1-6; ssh-keygen -l -f nothing; "
            "status=$?; rm k k.pub d.sig allowed; exit $status",
            needs=("ssh-keygen",)),
    Program("GnuPG",
            "export GNUPGHOME=$PWD/home/g; mkdir -m 700 $GNUPGHOME; "
            "gpg -q --batch --passphrase '' --quick-gen-key me ed25519 default never 2>/dev/null; echo data >d; "
            "gpg -q --batch --sign d; gpg -q --batch --verify d.gpg 2>&1 | grep -c Good; "
            "gpg -q --batch --list-keys --with-colons | grep -c ^pub; gpgconf --kill all; sleep 0.2; "
            "rm -rf $GNUPGHOME d.gpg",
            packages=("gnupg",), needs=("gpg",), is_heavy=True),
    # ---- sandboxes, wrappers and other programs that start a program
    Program("bubblewrap",
            "bwrap --ro-bind / / --proc /proc --dev /dev --unshare-all --die-with-parent sh -c 'echo inside; "
            "ls /proc/self/fd | wc -l; exit 5'; exit $?", packages=("bubblewrap",), needs=("bwrap",)),
    Program("fakeroot",
            "fakeroot-sysv sh -c 'touch f; chown 12:34 f; stat -c \"%u %g\" f; id -u; exit 4'; exit $?",
            packages=("fakeroot",), needs=("fakeroot-sysv",)),
    Program("setpriv, nsenter, flock",
            "setpriv --no-new-privs sh -c 'grep NoNewPrivs /proc/self/status'; flock lock sh -c 'echo locked'; "
            "setsid -w sh -c 'exit 3'; echo $?; taskset -c 0 nproc; nice -n 5 nice; chrt -b 0 echo batch; "
            "prlimit --nofile=64 sh -c 'ulimit -n'; exit 2", needs=("setpriv", "flock", "taskset", "chrt", "prlimit")),
    Program("stress-ng",  # uses no stressors whose work depends on the clock
            "stress-ng -q --seed 1 --fork 1 --fork-ops 30 --vfork 1 --vfork-ops 30 --pthread 1 --pthread-ops 20 --sigfpe 1 "
            "--sigfpe-ops 20 --sigsegv 1 --sigsegv-ops 20; exit $?",
            packages=("stress-ng",), needs=("stress-ng",), is_heavy=True),
    Program("Stockfish",
            "printf 'setoption name Threads value 1\\nsetoption name Use NNUE value false\\nposition startpos\\ngo depth "
            "8\\nquit\\n' >c; /usr/games/stockfish bench 16 1 6 2>&1 | grep -E 'Nodes searched'",
            packages=("stockfish",), needs=("/usr/games/stockfish",), is_heavy=True),
    Program("valgrind, as a program",
            "valgrind -q --error-exitcode=9 /bin/echo text; "
            "valgrind -q --tool=massif --massif-out-file=/dev/null /bin/true; exit $?", needs=("valgrind",), is_heavy=True),
]

# Modules of CPython's own tests that run here. tests/python_hosts/own_tests.rs runs other modules, such as those of
# garbage collection, threads and monitoring.
PYTHON_TESTS = "test_fork1 test_generators test_contextlib test_weakref"
PYTHON_SOURCE = """
import gc, json, os, signal, subprocess, sys, threading, tempfile, multiprocessing
# The library has this callback if the settings ask for collections to be recorded.
callbacks = [c for c in gc.callbacks if getattr(c, '__name__', '') != 'tllmprof_gc']
print(sys.version_info[:2], sys.flags.optimize, sys.gettrace(), sys.getprofile(), callbacks, threading.active_count())
print(sorted(m for m in sys.modules if 'tllm' in m.lower()), sys.argv)
def descriptors():
    for name in os.listdir('/proc/self/fd'):
        try: link = os.readlink('/proc/self/fd/' + name)
        except OSError: continue  # the listing's own
        # libfaketime opens its memory once more if another library reads the clock before libfaketime is initialized.
        if 'faketime_shm' not in link: yield link.split(':')[0]
print(sorted(descriptors()))
gc.collect(); print(gc.isenabled(), gc.get_threshold())
def work(n, out):
    out.append(sum(range(n)))
out = []
threads = [threading.Thread(target=work, args=(1000 * n, out)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(sorted(out))
print(json.loads('{"a": [1, 2]}'))
print(subprocess.run([sys.executable, '-c', 'import sys; print("sub"); sys.exit(4)'], stdout=subprocess.PIPE).returncode)
pid = os.fork()
if not pid: os._exit(3)
print(os.waitpid(pid, 0)[1])
pool = multiprocessing.get_context('fork').Pool(2)
print(pool.map(abs, range(-3, 3)))
# The pool is closed and not terminated, because `terminate` may kill workers before they have begun.
pool.close(); pool.join()
signal.signal(signal.SIGALRM, lambda *a: print('alarm')); signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()
try: open('/nothing')
except OSError as e: print(e.errno)
sys.stderr.write('err\\n')
sys.exit(6)
"""


def pythons(cache):
    """Returns [(path, version, kind, has tests)] from scripts/list-pythons, one of each version and kind."""
    listed = subprocess.run([os.path.join(ROOT, "scripts", "list-pythons")], capture_output=True, text=True,
                            env={**os.environ, "TLLMPROF_CACHE": cache})
    seen, found = set(), []
    for line in listed.stdout.splitlines():
        path, version, linked, kind, tests = line.split()
        version = ".".join(version.split(".")[:2]) + ("t" if kind == "free-threaded" else "")
        if (version, linked) not in seen and tests == "test":
            seen.add((version, linked))
            found.append((path, version, linked))
    return found


def python_programs(cache, is_quick):
    if is_quick:  # with --quick, uses only the running Python, because it takes too long to query all others
        version = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
        yield quick(version, [os.path.realpath(sys.executable), "-c", PYTHON_SOURCE], uses="python")
        return
    found = pythons(cache)
    done = set()
    for path, version, linked in found:
        name = f"Python {version}, {linked}"
        yield Program(name, [path, "-c", PYTHON_SOURCE], uses="python")
        if version not in done:
            done.add(version)
            line = (f"{path} -W ignore -m test {PYTHON_TESTS} 2>&1 | grep -E '^(test_|Result|Tests result|FAIL|ERROR|== "
                    f"Tests)' | grep -v ' sec'; exit ${{PIPESTATUS[0]}}")
            yield Program(f"CPython {version}'s own tests", line, needs=(path,), is_heavy=True, is_slow=True, uses="python",
                          timeout=400)
    if not found:
        yield Program("Python", "true", left_out="scripts/list-pythons finds none with CPython's tests")
    yield Program("NumPy's tests", "/usr/bin/python3 -c 'import numpy, sys; print(numpy.__version__); "
                                   "from numpy.core.tests import test_numeric' && "
                  "/usr/bin/python3 -m pytest -q -p no:cacheprovider -x "
                  "/usr/lib/python3/dist-packages/numpy/core/tests/test_umath.py "
                  "/usr/lib/python3/dist-packages/numpy/core/tests/test_multithreading.py "
                  "/usr/lib/python3/dist-packages/numpy/core/tests/test_errstate.py "
                  "/usr/lib/python3/dist-packages/numpy/random/tests/test_random.py | grep -v -E 'warnings?$' | sed 's/ "
                  "in [0-9.]*s.*//' | tail -n 3; exit ${PIPESTATUS[0]}",
                  packages=("python3-numpy", "python3-pytest", "python3-hypothesis"), needs=("/usr/bin/python3",),
                  is_heavy=True, is_slow=True, uses="python", timeout=400)


STANDIN = ["steps_shared12", "steps_shared13", "steps_static", "steps_dlsym", "steps_driver_gpa2", "steps_rtld_local", "forks",
           "two_threads", "threads", "throws", "engines", "nested", "vfork_exit"]
STANDIN_ARGUMENTS = {"steps_shared12": ["--kernels", "2", "--copy-out", "--fork-at", "3", "--vfork-at", "9"],
                     "steps_static": ["--threads", "3", "--status", "5"], "steps_dlsym": ["--exit", "_exit", "--status", "4"],
                     "steps_shared13": ["--exit", "sigterm"]}


def standin_programs(folder):
    for name in STANDIN:
        yield Program(f"stand-in: {name}", [os.path.join(folder, "bin", name), *STANDIN_ARGUMENTS.get(name, [])], uses="cuda",
                      is_quick=name in ("steps_shared12", "steps_static", "throws"), variables={"LD_LIBRARY_PATH": folder})


SOURCES_TO_BUILD = [("process state", "state.c", ["-std=gnu11"], ["argument"]),
                    ("threads in C++", "threads.cpp", ["-std=c++17"], []),
                    ("allocations", "memory.c", ["-std=gnu11"], [])]


def compiler(source):
    return "g++" if source.endswith(".cpp") else "gcc"


def text_of(program):
    """Returns the source of a program that is built from `programs`, or an empty text."""
    if not program.source:
        return ""
    with open(os.path.join(SOURCES, program.source)) as file:
        return file.read()


def built_programs(folder):
    for name, source, options, arguments in SOURCES_TO_BUILD:
        yield Program(name, [os.path.join(folder, source.split(".")[0]), *arguments], is_quick=True, source=source,
                      needs=("gcc",))


def build(folder, log, wanted=None):
    """Builds the programs census and fit, and the programs to run in SOURCES_TO_BUILD, or only those in
    `wanted`."""
    os.makedirs(folder, exist_ok=True)

    def build_one(of):
        source, options = of
        command = [compiler(source), "-O1", "-g", "-pthread", *options, os.path.join(SOURCES, source), "-o",
                   os.path.join(folder, source.split(".")[0]), "-ldl", "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            log(f"{source} cannot be built: {error.strerror}")
            return
        if done.returncode:
            log(f"{source} cannot be built: {done.stderr.strip()[-300:]}")

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        everything = [("census.c", []), ("fit.c", []), *((source, options) for _, source, options, _ in SOURCES_TO_BUILD)]
        list(pool.map(build_one, [of for of in everything if not wanted or of[0] in wanted]))


def all_programs(cache, built, standin, is_quick=False):
    return [*built_programs(built), *TABLE, *python_programs(cache, is_quick), *standin_programs(standin)]
