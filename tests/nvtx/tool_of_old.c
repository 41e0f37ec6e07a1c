/* A tool that knows no extensions. */
#define NO_EXTENSION
#include "tool.c"
