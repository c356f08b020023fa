/* Reads of every value and gates of the key, with the macros that the including unit has defined. */

#ifdef __cplusplus
inline int inline_sum()
{
    return imv_read(u8) + (static_branch_unlikely(&key) ? 1000 : 0);
}

template <class T> T template_sum(T start)
{
    auto add = [start](T other) { return static_cast<T>(start + other + static_cast<T>(imv_read(i16))); };
    return add(static_cast<T>(imv_read(u8)));
}
#endif

/* Returns the number of reads that do not give the first or, if is_second, the second value. */
static inline int differing(int is_second)
{
    int differ = 0;
    EACH_VALUE(DIFFERS)
    differ += imv_read(step)(10) != (is_second ? 30 : 20);

    unsigned sum = 0;
    for (int index = 0; index < 8; index++)
        sum += imv_read(u8) * (unsigned)index;
    differ += sum != (is_second ? 255U : 3U) * 28;

    bool is_taken = false;
    if (static_branch_unlikely(&key))
        is_taken = true;
    differ += is_taken != (bool)is_second;
    differ += static_branch_likely(&key) != (bool)is_second;
#ifdef __cplusplus
    differ += inline_sum() != (is_second ? 1255 : 3);
    differ += template_sum(1) != (is_second ? 1 + 255 + INT16_MIN : 1 + 3 - 300);
    differ += template_sum(0.5) != (is_second ? 0.5 + 255 + INT16_MIN : 0.5 + 3 - 300);
#endif
    return differ;
}

/* Sets all values and the key in one batch. Returns 0 or a negative errno. */
static inline int set_all(int is_second)
{
    struct dormouse_imv_change changes[] = {
        EACH_VALUE(CHANGE) STATIC_KEY_ENABLE(key),
    };
    const size_t count = sizeof changes / sizeof *changes;
    if (!is_second)
        changes[count - 1].operation = DORMOUSE_IMV_OPERATION_DISABLE;
    return dormouse_imv_update(changes, count);
}
