/* Creates all thread-specific data keys that are still free, and stores a value under each.
 * After some steps, each key must still have its value. */
#include "hostile.h"

static struct loop loop;

int main(void)
{
    static char value[4096];
    static pthread_key_t keys[4096];
    hostile_begin();
    int made = 0;
    while (made < 4096 && pthread_key_create(&keys[made], NULL) == 0) {
        pthread_setspecific(keys[made], &value[made]);
        made++;
    }
    open_default(&loop);
    make_steps(&loop, 8);
    int lost = 0;
    for (int i = 0; i < made; i++)
        lost += pthread_getspecific(keys[i]) != &value[i];
    printf("over 900 keys: %d, lost: %d\n", made > 900, lost);
    print_result(&loop);
    return 0;
}
