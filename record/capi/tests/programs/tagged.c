/*
 * Tags in C and C++. Prints what each event of `tagged:event` has: its number, and the tags `request` and `user` as text.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dormouse/event.h>
#include <dormouse/tag.h>

static int number;

static void emit(unsigned long request, const char *user)
{
    printf("event %d %lu %s\n", ++number, request, user);
    DORMOUSE_EVENT(tagged, event, (number, number));
}

static void *go_on(void *tags)
{
    emit(0, "");
    dormouse_tags_set((const struct dormouse_tags *)tags);
    emit(7, "alice");
    return NULL;
}

int main(void)
{
    char text[301];
    struct dormouse_tags tags;
    pthread_t thread;

    emit(0, "");
    {
        DORMOUSE_TAG(request, 7u);
        emit(7, "");
        {
            const char *user = "alice";
            DORMOUSE_TAG(user, user);
            emit(7, "alice");
            for (unsigned short request = 8; request < 10; request++) {
                DORMOUSE_TAG(request, request);
                emit(request, "alice");
            }
            emit(7, "alice");
            dormouse_tags_get(&tags);
            if (pthread_create(&thread, NULL, go_on, &tags) != 0 || pthread_join(thread, NULL) != 0)
                return 1;
        }
        emit(7, "");
    }
    memset(text, 'x', 300);
    text[300] = '\0';
    {
        DORMOUSE_TAG(user, text);
        text[255] = '\0';
        emit(0, text);
    }
    {
        char *none = NULL;
        DORMOUSE_TAG(user, none);
        emit(0, "");
    }
#ifdef __cplusplus
    {
        DORMOUSE_TAG(user, std::string_view("bob and others", 3));
        emit(0, "bob");
    }
#endif
    emit(0, "");
    return 0;
}
