# Runs everyday tools in the ways in which scripts use them.
mkdir tree && for i in $(seq 30); do seq "$i" > "tree/$i"; done
tar -C tree --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - . | gzip -n > tree.tgz
gzip -dc tree.tgz | sha256sum; tar -tzf tree.tgz | wc -l
find tree -type f -print0 | sort -z | xargs -0 -n 4 -P 4 cat | sort -n | uniq -c | tail -n 3
awk 'BEGIN { "echo piped" | getline line; print line; exit 4 }'; echo "awk: $?"
nohup sh -c 'echo hung up' 2> /dev/null; nice -n 5 sh -c nice; setsid -w sh -c 'exit 6'; echo "setsid: $?"
sort --parallel=4 -S 64K -n tree/* | md5sum
xargs -n 1 sh -c 'exit 255' <<< one; echo "xargs: $?"
