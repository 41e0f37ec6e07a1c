/* The library that an upgrade replaces. */
int replaced_step(void);

int replaced_step(void)
{
    return 7;
}
