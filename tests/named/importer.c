/* A library that calls a function of another library through its GOT slot. */
long lent_step(long n);

__attribute__((visibility("default"))) long importer_run(long n)
{
    return lent_step(n) + lent_step(n + 1);
}
