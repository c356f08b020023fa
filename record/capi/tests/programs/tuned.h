/* Declarations that the units of the tuned program share. */
#ifndef TUNED_H
#define TUNED_H

#include <dormouse/static_key.h>
#include <dormouse/tunable.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Exported by each unit that includes this, to test repetition. */
extern unsigned batch_size __attribute__((visibility("hidden")));
#ifdef TUNED_AGAIN
DORMOUSE_TUNABLE_RANGE(batch_size, "c.batch_size", "requests handled at once", 1, 1024);
#endif

int cpp_level(void);

#ifdef __cplusplus
}
#endif
#endif
