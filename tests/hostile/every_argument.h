/* Declares a function that has the name of a driver function, but another signature. */
struct large {
    long integers[12];
    double doubles[10];
};

typedef struct large launch_t(long, long, long, long, long, long, long, long, double, double, double,
                              double, double, double, double, double, long, long, double, double);

launch_t cuGraphLaunch;
