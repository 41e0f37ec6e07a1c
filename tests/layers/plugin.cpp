/* A library that the program opens after its start. Only one of its functions can be looked up; that function
 * calls the others. */
#include <string>

#define OP static __attribute__((noinline, noclone))

static void (*launch)(const char *);

OP long op_hidden(const std::string &text)
{
    launch("op_plugin/op_hidden");
    return (long)text.size();
}

OP long op_plugin(long n)
{
    launch("op_plugin");
    return op_hidden(std::to_string(n)) + n;
}

extern "C" __attribute__((visibility("default"))) void plugin_runs(void (*with)(const char *))
{
    launch = with;
    volatile long sum = 0;
    for (int n = 0; n < 3; n++)
        sum = sum + op_plugin(n);
}
