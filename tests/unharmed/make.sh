# Runs make with a job server, whose pipe is inherited by descriptor number, and many jobs at once.
command -v make > /dev/null || { echo 'skipped: no make'; exit 77; }
unset MAKEFLAGS MAKELEVEL
cat > Makefile << 'M'
parts := $(foreach i,1 2 3 4 5 6 7 8 9 10 11 12,part$(i).o)
all: $(parts)
	@cat $(parts) | sort
	@$(MAKE) --no-print-directory inner
inner: $(parts:.o=.in)
	@echo inner done
part%.o:
	@echo 'int f$*;' > part$*.c && gcc -c part$*.c -o real$*.o && echo made $* > $@
part%.in: part%.o
	@cp $< $@
wrong:
	@exit 3
M
make -s -j 4; echo "make: $?"
make -s -j 2 wrong; echo "wrong: $?"
