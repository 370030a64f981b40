/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Go: the goroutine that the thread runs, and its labels. The walk is that of ../src/goroutine.rs and ../src/labels.rs,
 * which explain it; layouts are shared with ../src/step.rs.
 */

/* Maximum number of labels of a sample; of a map, those in that many buckets at most. */
#define GO_LABELS 32
#define GO_BUCKETS 16
/* The logarithm of the maximum number of buckets of a map: eight, with no more than 52 labels. */
#define GO_MAX_BITS 3
/* Maximum length of a label's name and of its value, in bytes, and of all texts of a sample. */
#define GO_NAME 128
#define GO_VALUE 256
#define GO_TEXT 4096
#define GO_MAX_COUNT (1 << 20)
/* Number of words of a goroutine that are read: fewer than the smallest one has. */
#define GO_GOROUTINE 48
/* Words of a bucket: tops of hashes, eight names, eight values, and the next one. */
#define GO_BUCKET 34
#define GO_MIN_TOP 5
#define GO_SAME_SIZE 8
/* The register of a goroutine's address on aarch64. */
#define GO_REGISTER 28

/* How the address of a thread's `g` is found. */
enum go_place {
    GO_VARIABLE = 0, /* at an offset from the thread pointer */
    GO_IN_REGISTER = 1,
};

enum go_labels {
    GO_MAP = 0,
    GO_SLICE = 1,
};

/* Offsets in bytes; in words where they are in a goroutine. */
struct go_configuration {
    __u64 place; /* enum go_place */
    __u64 variable;
    __u64 thread; /* g.m */
    __u64 current; /* m.curg */
    __u64 id;
    __u64 labels;
    __u64 kind; /* enum go_labels */
};

/* The state of the part, as in ../src/step.rs. */
enum go_state {
    GO_NONE = 1, /* the thread runs no goroutine */
    GO_RUNS = 2,
    GO_FOREIGN = 3, /* the goroutine belongs to another thread */
    GO_BROKEN = 4, /* labels that Go does not make */
};

struct go_text {
    __u64 address;
    __u64 length;
};

struct go_label {
    struct go_text name;
    struct go_text value;
};

struct go_part {
    __u64 state;
    __u64 id;
    __u64 count; /* of its labels */
    __u64 kept;
    /* Lengths of names and values. */
    __u16 lengths[GO_LABELS][2];
    __u8 text[GO_TEXT + GO_VALUE];
    /* The rest is not passed on. What loops keep is here: the verifier would follow each value of a variable. */
    volatile __u64 used;  /* bytes of texts */
    volatile __u64 index; /* of the bucket, old ones first */
    volatile __u64 next;  /* a bucket's follower, or 0 */
    struct go_label labels[GO_LABELS];
    union {
        __u64 goroutine[GO_GOROUTINE];
        __u64 bucket[GO_BUCKET];
    };
};

/* A map of Go's. */
struct go_map {
    __u64 count;
    __u8 flags;
    __u8 bits;
    __u8 reserved[6];
    __u64 buckets;
    __u64 old;
};

_Static_assert(sizeof(struct go_configuration) <= STEP_CONFIGURATION_SIZE, "a configuration");
_Static_assert(sizeof(struct go_part) <= STEP_ROOM, "a part");

/* A word of the goroutine that was read. */
static __always_inline __u64 go_word(const struct go_part *part, __u64 index)
{
    HIDE(index);
    return index < GO_GOROUTINE ? part->goroutine[index] : 0;
}

/* The address of the thread's `g`. */
static __always_inline int go_g(const struct go_configuration *go, __u64 *g)
{
#if defined(__TARGET_ARCH_arm64)
    if (go->place == GO_IN_REGISTER)
        return bpf_probe_read_kernel(g, sizeof *g,
                                     (const __u64 *)saved_registers(current_task()) + GO_REGISTER);
#endif
    __u64 tp = OF_TASK(current_task(), THREAD_POINTER);
    if (!tp) {
        *g = 0;
        return 0;
    }
    return read_user(g, sizeof *g, tp + go->variable, 0);
}

/* Reads the goroutine that the thread runs. */
static __always_inline enum step_outcome go_running(const struct go_configuration *go,
                                                    struct go_part *to)
{
    __u64 g, current;
    to->state = 0;
    if (go_g(go, &g))
        return STEP_MEMORY;
    /* Not a thread of Go's. */
    if (!g)
        return STEP_DONE;
    if (read_user(to->goroutine, sizeof to->goroutine, g, 0))
        return STEP_MEMORY;
    to->state = GO_NONE;
    __u64 thread = go_word(to, go->thread);
    if (!thread)
        return STEP_DONE;
    if (read_user(&current, sizeof current, thread + go->current, 0))
        return STEP_MEMORY;
    if (!current)
        return STEP_DONE;
    if (current != g && read_user(to->goroutine, sizeof to->goroutine, current, 0))
        return STEP_MEMORY;
    __u64 owner = go_word(to, go->thread);
    to->state = !owner || owner == thread ? GO_RUNS : GO_FOREIGN;
    to->id = go_word(to, go->id);
    return STEP_DONE;
}

/* Reads the texts' addresses of a slice's labels. */
static __always_inline enum step_outcome go_slice(struct go_part *to, __u64 address)
{
    __u64 slice[3];
    if (read_user(slice, sizeof slice, address, 0))
        return STEP_MEMORY;
    if (slice[1] > slice[2] || slice[1] > GO_MAX_COUNT) {
        to->state = GO_BROKEN;
        return STEP_DONE;
    }
    __u64 kept = slice[1] < GO_LABELS ? slice[1] : GO_LABELS;
    to->count = slice[1];
    to->kept = kept;
    __u64 size = kept * sizeof to->labels[0];
    HIDE(size);
    if (size > sizeof to->labels)
        return STEP_LIMIT;
    return read_user(to->labels, size, slice[0], 0) ? STEP_MEMORY : STEP_DONE;
}

/* Takes the labels of the bucket that was read. Linux 5.10 and 6.1 refuse a loop whose body
 * falls through into its first test, which the compiler makes of `continue`. */
static __always_inline void go_bucket(struct go_part *to)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const __u8 *tops = (const __u8 *)to->bucket;
        __u64 kept = to->kept;
        if (tops[i] < GO_MIN_TOP || kept >= GO_LABELS)
            continue;
        HIDE(kept);
        struct go_label *label = &to->labels[kept & (GO_LABELS - 1)];
        label->name.address = to->bucket[1 + 2 * i];
        label->name.length = to->bucket[2 + 2 * i];
        label->value.address = to->bucket[17 + 2 * i];
        label->value.length = to->bucket[18 + 2 * i];
        to->kept = kept + 1;
    }
}

/* Reads the texts' addresses of a map's labels: in the old buckets that were not moved, and in the new ones. */
static __always_inline enum step_outcome go_map(struct go_part *to, __u64 variable)
{
    struct go_map map;
    __u64 address;
    if (read_user(&address, sizeof address, variable, 0))
        return STEP_MEMORY;
    if (!address)
        return STEP_DONE;
    if (read_user(&map, sizeof map, address, 0))
        return STEP_MEMORY;
    if (map.bits > GO_MAX_BITS)
        return STEP_LIMIT;
    to->count = map.count;
    if (!map.buckets)
        return STEP_DONE;
    __u32 news = 1U << (map.bits & GO_MAX_BITS), olds = 0;
    if (map.old && map.bits)
        olds = map.flags & GO_SAME_SIZE ? news : news / 2;
    for (int i = 0; i < GO_BUCKETS; i++) {
        __u64 at = to->next, index = to->index;
        int is_old = index < olds;
        if (!at) {
            if (index >= olds + news)
                return STEP_DONE;
            at = is_old ? map.old + index * sizeof to->bucket
                        : map.buckets + (index - olds) * sizeof to->bucket;
        }
        if (read_user(to->bucket, sizeof to->bucket, at, 0))
            return STEP_MEMORY;
        __u8 first = *(const __u8 *)to->bucket;
        if (is_old && first > 1 && first < GO_MIN_TOP) {
            to->index = index + 1;
            continue;
        }
        go_bucket(to);
        to->next = to->bucket[GO_BUCKET - 1];
        if (!to->next)
            to->index = index + 1;
    }
    return to->index < olds + news ? STEP_LIMIT : STEP_DONE;
}

/* Reads a text behind the others. */
static __always_inline int go_text(struct go_part *to, const struct go_text *text, __u64 limit,
                                   __u16 *length)
{
    __u64 size = text->length < limit ? text->length : limit, at = to->used;
    HIDE(size);
    HIDE(at);
    if (size > limit || at > GO_TEXT - 1)
        return 1;
    *length = size;
    to->used = at + size;
    return read_user(to->text + (at & (GO_TEXT - 1)), size, text->address, 0);
}

static __always_inline enum step_outcome go_step(void *context __attribute__((unused)),
                                                 struct part_head *part, const void *configuration,
                                                 const struct thread_key *key
                                                 __attribute__((unused)),
                                                 int has_loops __attribute__((unused)))
{
    const struct go_configuration *go = configuration;
    struct go_part *to = (void *)(part + 1);
    enum step_outcome outcome = go_running(go, to);
    if (outcome || !to->state)
        return outcome;
    to->count = to->kept = to->used = to->index = to->next = 0;
    part->size = __builtin_offsetof(struct go_part, text);
    __u64 labels = go_word(to, go->labels);
    if (to->state != GO_RUNS || !labels)
        return STEP_DONE;
    outcome = go->kind == GO_SLICE ? go_slice(to, labels) : go_map(to, labels);
    if (outcome || to->state != GO_RUNS) {
        part->size = outcome ? 0 : part->size;
        return outcome;
    }
    __u64 kept = to->kept;
    for (__u32 i = 0; i < GO_LABELS && i < kept; i++) {
        struct go_label *label = &to->labels[i];
        __u16 *lengths = to->lengths[i];
        if (go_text(to, &label->name, GO_NAME, &lengths[0]) ||
            go_text(to, &label->value, GO_VALUE, &lengths[1])) {
            part->size = 0;
            return to->used >= GO_TEXT ? STEP_LIMIT : STEP_MEMORY;
        }
    }
    part->size += to->used;
    return STEP_DONE;
}
