/* The library that defines the function of every_argument.h. The function returns its arguments, and two numbers
 * computed from the first argument. */
#include "every_argument.h"

struct large cuGraphLaunch(long a, long b, long c, long d, long e, long f, long g, long h, double i,
                           double j, double k, double l, double m, double n, double o, double p,
                           long q, long r, double s, double t)
{
    return (struct large){{a, b, c, d, e, f, g, h, q, r, 2 * a, -a},
                          {i, j, k, l, m, n, o, p, s, t}};
}
