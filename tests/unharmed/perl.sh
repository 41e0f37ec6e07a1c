command -v perl > /dev/null || { echo 'skipped: no perl'; exit 77; }
perl -e '$| = 1; my $p = fork // die; if (!$p) { print "child\n"; exit 3 } waitpid $p, 0; print $? >> 8, "\n"; print `echo back`; exec "sh", "-c", "exit 5"'
echo "exec: $?"
perl -MPOSIX -e 'open(my $h, "-|", "seq 3") or die; print while <$h>; close $h; local $SIG{ALRM} = sub { print "alarm\n"; POSIX::_exit(8) }; alarm 1; sleep 30'
echo "_exit: $?"
perl -e 'die "died\n"'; echo "die: $?"
