/* The library whose file replaced.c replaces. */
int replaced_step(void);

int replaced_step(void)
{
    return 7;
}
