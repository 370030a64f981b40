/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Node.js: the context of the asynchronous call that the thread executes, as an addon publishes it. The walk is that
 * of ../src/walk.rs, which explains it; layouts are shared with ../src/step.rs.
 */

/* Maximum number of entries of a bucket that are read. */
#define NODE_CHAIN 16
/* Number of bytes of a table that are read at once: the size of the smallest one, which may end with its page. V8 makes
 * none for fewer than four entries, in two buckets (OrderedHashTable::kInitialCapacity): 5 + 2 + 4 * 3 words. */
#define NODE_TABLE_SIZE 152
/* The table mostly follows its map, which V8 allocates with room for more fields at first: both are read at once. */
#define NODE_MAP_SIZE 304
#define NODE_MAX_ENTRIES 65536
#define NODE_RECORD_SIZE 640
/* Number of bytes of a record that are read at once. Most records have no more. */
#define NODE_RECORD_FIRST 128
#define NODE_TAG 1
#define NODE_MAP_TABLE 24

#define NODE_MAX_ADDONS 4

/* The place of a record in an object, if the structure does not have its offset. */
enum node_place {
    NODE_PUBLISHED = 0,
    NODE_IN_OBJECT = 1,
    NODE_IN_NATIVE = 2,
    NODE_COMPRESSED = 3, /* not supported */
};

struct node_configuration {
    struct place addons[NODE_MAX_ADDONS]; /* storage 0: none */
    __u64 place; /* enum node_place */
    __u64 in_object;
    __u64 in_native;
};

struct node_published {
    __u64 cped_slot;
    __u64 als_handle;
    __s32 als_identity_hash;
    __u8 record_slot_offset;
    __u8 reserved[3];
    __u64 undefined;
};

/* The state of the part, as in ../src/step.rs. */
enum node_state {
    NODE_NO_FRAME = 1,
    NODE_NOT_IN_FRAME = 2,
    NODE_DETACHED = 3,
    NODE_TORN_DOWN = 4,
    NODE_RECORD = 5,
    NODE_INVALID = 6,
    NODE_BROKEN = 7,
    NODE_UNSUPPORTED = 8,
};

struct node_part {
    __u64 state;
    __u8 record[NODE_RECORD_SIZE];
    /* The rest is not passed on. */
    __u64 start; /* the table's address */
    __u64 table; /* its beginning, as an offset in `read` */
    __u8 read[512];
};

_Static_assert(sizeof(struct node_configuration) <= STEP_CONFIGURATION_SIZE, "a configuration");
_Static_assert(sizeof(struct node_part) <= STEP_ROOM, "a part");

static __always_inline int node_field(__u64 *to, __u64 object, __u64 offset)
{
    return !(object & NODE_TAG) || read_user(to, sizeof *to, object - NODE_TAG + offset, 0);
}

/* The number in a tagged word; -2 if it is none. */
static __always_inline __s64 node_integer(__u64 word)
{
    return word & 0xffffffff ? -2 : (__s64)word >> 32;
}

/* A word of the table, by its offset in bytes. */
static __always_inline int node_word(const struct node_part *part, __u64 *to, __u64 offset)
{
    if (offset > NODE_TABLE_SIZE - sizeof *to)
        return read_user(to, sizeof *to, part->start + offset, 0);
    offset += *(volatile __u64 *)&part->table;
    HIDE(offset);
    *to = *(__u64 *)(part->read + (offset & (sizeof part->read - sizeof *to)));
    return 0;
}

/* Reads the beginning of a map's table. */
static __always_inline int node_table(struct node_part *part, __u64 map)
{
    __u64 table, start = map - NODE_TAG;
    if (!(map & NODE_TAG))
        return 1;
    if (read_user(part->read, NODE_MAP_SIZE, start, 0)) {
        /* The mapping may end before that. */
        if (read_user(&table, sizeof table, start + NODE_MAP_TABLE, 0))
            return 1;
    } else {
        table = *(__u64 *)(part->read + NODE_MAP_TABLE);
        part->table = table - NODE_TAG - start;
        if (part->table <= NODE_MAP_SIZE - NODE_TABLE_SIZE && !(part->table & 7)) {
            part->start = table - NODE_TAG;
            return 0;
        }
    }
    part->table = 0;
    part->start = table - NODE_TAG;
    return !(table & NODE_TAG) || read_user(part->read, NODE_TABLE_SIZE, part->start, 0);
}

static __always_inline int node_forwards(__u64 from, __u64 to)
{
    __u64 first;
    return from & to & NODE_TAG && !read_user(&first, sizeof first, from - NODE_TAG, 0) &&
           first == to - NODE_TAG;
}

/* Finds the value of the key. */
static __always_inline enum node_state node_look_up(struct node_part *part, __u64 key, __u32 hash,
                                                    __u64 *value)
{
    __u64 header[5];
#pragma unroll
    for (int i = 1; i < 5; i++)
        node_word(part, &header[i], 8 * i);
    __s64 length = node_integer(header[1]), elements = node_integer(header[2]);
    __s64 deleted = node_integer(header[3]), buckets = node_integer(header[4]);
    if (elements < 0 || deleted < 0 || buckets <= 0 || buckets & (buckets - 1) ||
        elements + deleted > 2 * buckets || elements + deleted > NODE_MAX_ENTRIES ||
        length < 3 + 7 * buckets)
        return NODE_BROKEN;
    __u64 next, found;
    if (node_word(part, &next, 40 + 8 * ((__u64)hash & (buckets - 1))))
        return NODE_BROKEN;
    for (int i = 0; i < NODE_CHAIN; i++) {
        __s64 index = node_integer(next);
        if (index == -1)
            return NODE_NOT_IN_FRAME;
        if (index < 0 || index >= elements + deleted)
            return NODE_BROKEN;
        __u64 entry = 40 + 8 * buckets + 24 * (__u64)index;
        if (node_word(part, &found, entry) || node_word(part, value, entry + 8) ||
            node_word(part, &next, entry + 16))
            return NODE_BROKEN;
        if (found == key || node_forwards(found, key) || node_forwards(key, found))
            return NODE_RECORD;
    }
    return NODE_BROKEN;
}

/* Follows the structure to the record. */
static __always_inline enum node_state node_walk(const struct node_configuration *node,
                                                 struct node_part *part,
                                                 const struct node_published *published,
                                                 __u64 *record)
{
    __u64 undefined = published->undefined, frame, key, value;
    if (!(undefined & NODE_TAG) && read_user(&undefined, sizeof undefined, undefined, 0))
        return NODE_BROKEN;
    if (read_user(&frame, sizeof frame, published->cped_slot, 0))
        return NODE_BROKEN;
    if (frame == undefined)
        return NODE_NO_FRAME;
    if (node_table(part, frame) || read_user(&key, sizeof key, published->als_handle, 0))
        return NODE_BROKEN;
    enum node_state state = node_look_up(part, key, published->als_identity_hash, &value);
    if (state != NODE_RECORD)
        return state;
    if (value == undefined)
        return NODE_DETACHED;
    __u64 offset = published->record_slot_offset;
    int is_old = !offset;
    if (is_old)
        offset = node->in_object;
    if (!offset || node_field(record, value, offset))
        return NODE_BROKEN;
    /* The offset that older addons publish is wrong from Node.js 23 on. */
    if (is_old && !*record && offset == 24 && node_field(record, value, 32))
        return NODE_BROKEN;
    if (is_old && node->place == NODE_IN_NATIVE && *record &&
        read_user(record, sizeof *record, *record + node->in_native, 0))
        return NODE_BROKEN;
    return *record ? NODE_RECORD : NODE_TORN_DOWN;
}

/* Reads the record of an addon, and the state of the part. Returns whether there is a valid record. */
static __always_inline int node_addon(struct part_head *part, const struct node_configuration *node,
                                      __u64 address)
{
    struct node_part *to = (void *)(part + 1);
    struct node_published published;
    __u64 record;
    if (read_user(&published, sizeof published, address, 0)) {
        to->state = NODE_BROKEN;
        return 0;
    }
    if (!published.cped_slot)
        return 0;
    if (node->place == NODE_COMPRESSED) {
        to->state = NODE_UNSUPPORTED;
        return 0;
    }
    to->state = node_walk(node, to, &published, &record);
    if (to->state != NODE_RECORD)
        return 0;
    to->state = NODE_BROKEN;
    __u64 have = NODE_RECORD_FIRST;
    if (read_user(to->record, NODE_RECORD_FIRST, record, 0)) {
        /* It may be a short one at the end of a mapping. */
        have = RECORD_HEADER;
        if (read_user(to->record, RECORD_HEADER, record, 0))
            return 0;
    }
    if (to->record[RECORD_VALID] != 1) {
        to->state = NODE_INVALID;
        return 0;
    }
    __u64 size = RECORD_HEADER + *(__u16 *)(to->record + RECORD_ATTRIBUTES_SIZE);
    if (size > NODE_RECORD_SIZE)
        size = NODE_RECORD_SIZE;
    if (size > have) {
        __u64 more = size - have;
        HIDE(more);
        if (more > NODE_RECORD_SIZE - have || read_user(to->record + have, more, record + have, 0))
            return 0;
    }
    to->state = NODE_RECORD;
    part->size = sizeof to->state + size;
    return 1;
}

/* As in user space, prefers the first addon with a valid record to the first one that publishes. */
static __always_inline enum step_outcome nodejs_step(void *context __attribute__((unused)),
                                                     struct part_head *part,
                                                     const void *configuration,
                                                     const struct thread_key *thread
                                                     __attribute__((unused)),
                                                     int has_loops __attribute__((unused)))
{
    const struct node_configuration *node = configuration;
    struct node_part *to = (void *)(part + 1);
    __u64 tp = OF_TASK(current_task(), THREAD_POINTER), first = 0;
    for (int i = 0; i < NODE_MAX_ADDONS; i++) {
        __u8 outcome;
        if (!tp || !node->addons[i].storage)
            break;
        __u64 address = variable(&node->addons[i], tp, 0, &outcome);
        if (!address)
            continue;
        to->state = 0;
        if (node_addon(part, node, address))
            return STEP_DONE;
        if (!first)
            first = to->state;
    }
    to->state = first;
    part->size = first ? sizeof to->state : 0;
    return STEP_DONE;
}
