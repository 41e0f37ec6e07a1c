/* An older tool that does not support extensions. */
#define NO_EXTENSION
#include "tool.c"
