/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* CPython: the running thread's state, whether it holds the GIL, and its frames.
 *
 * The recorder reads names later. A frame has a hash of its code object's contents, so that it never gets the name of
 * another function whose code object has the same address later. Layouts are shared with ../src/step.rs.
 */

/* Frames that are kept: the innermost ones, and PYTHON_OUTERMOST of the outermost ones. */
#define PYTHON_FRAMES 512
#define PYTHON_OUTERMOST 32
#define PYTHON_INNERMOST (PYTHON_FRAMES - PYTHON_OUTERMOST)
/* Maximum number of frames that are walked. Without bpf_loop the verifier follows each. */
#define PYTHON_WALKED 4096
#define PYTHON_WALKED_WITHOUT_LOOPS 127
/* Number of words of a code object that are read, from its type on. */
#define PYTHON_CODE_WORDS 16
#define PYTHON_LANES 4
/* Number of highest bits of the hash of an address by which functions are cached. */
#define PYTHON_FUNCTION_BITS 2
/* 2^64 divided by the golden ratio: its multiples differ in their highest bits. */
#define PYTHON_FACTOR 0x9e3779b97f4a7c15ULL
/* A field that the version does not have. */
#define PYTHON_NO_FIELD (~0ULL)
#define PYTHON_FRAME_SIZE 128
#define PYTHON_OWNED_BY_GENERATOR 1
#define PYTHON_EXECUTING 0
/* There is no GIL, or it is unknown whether the thread holds it. */
#define PYTHON_NO_GIL 2
/* More than a thread state takes in 3.10, 3.11 and 3.12. */
#define PYTHON_STATE_SIZE 1024
/* No thread has more stack. Elsewhere are more than this many bytes before the stack of the first thread. */
#define PYTHON_STACK_SIZE (64 << 20)
/* Maximum number of addresses from which a stack is walked again. */
#define PYTHON_RETRIES 8
/* General registers, which are the first words of a program's context. */
#if defined(__TARGET_ARCH_x86)
#define PYTHON_REGISTERS 15
#elif defined(__TARGET_ARCH_arm64)
#define PYTHON_REGISTERS 31
#endif
/* Size of the head of a string and its first characters; size of the head. */
#define PYTHON_TEXT_SIZE 80
#define PYTHON_TEXT_CHARACTERS 32
#define PYTHON_TEXT_IS_ASCII 0x40

/* Offsets are in bytes. */
struct python_configuration {
    __u64 current; /* address of the state that holds the GIL, up to 3.11; 0 later */
    /* from 3.12 on, from the thread pointer to the state that the thread uses, which is 0 while it has released the
     * GIL; PYTHON_NO_FIELD if that is unknown */
    __u64 thread_current;
    __u64 code_type; /* address of PyCode_Type */
    __u64 thread_id; /* from the thread pointer to the result of pthread_self */
    __u64 interpreters; /* address of the pointer to the first interpreter */
    /* Where threads store their states: by a key, as pthread_getspecific finds it, or in a variable at
     * `values`, which is PYTHON_NO_FIELD if that is unknown. */
    __u64 key;  /* address of its number; 0 for a variable */
    __u64 keys; /* address of glibc's __pthread_keys; 0 for musl */
    __u64 key_size;
    __u64 key_sequence;
    __u64 values; /* from the thread pointer to the pointers to blocks of values */
    __u64 entries;
    __u64 entry_size;
    /* In a thread state, */
    __u64 state_thread;
    __u64 state_interpreter;
    __u64 state_frame; /* the innermost frame, or a _PyCFrame */
    __u64 state_call; /* in 3.10 and 3.11, the address of the innermost call's structure on the C stack */
    /* in an interpreter, */
    __u64 interpreter_next;
    /* in it and its GIL, from 3.12 on, */
    __u64 gil;
    __u64 gil_locked;
    __u64 gil_holder;
    __u64 gil_enabled; /* in free-threaded builds: an int, 0 while there is no GIL */
    /* in a _PyCFrame (3.11, 3.12), */
    __u64 c_frame_current; /* and after it, `previous` */
    /* and in the copied part of a frame. */
    __u64 frame_start;
    __u64 frame_size;
    __u64 frame_previous;
    __u64 frame_code;
    __u64 frame_position;
    __u64 frame_mark;      /* a byte: is_entry or owner; */
    __u64 entry_marks;     /* if it has one of these bits, the frame is the outermost one of a call; */
    __u64 shim_marks;      /* from this value on, the frame is no function */
    __u64 all_are_entries; /* each frame is a call of its own, up to 3.10 */
    __u64 frame_owner;
    __u64 generator_state; /* in 3.11, in a generator's frame */
    __u64 position_is_int; /* else an address in the code object, or in a copy of its instructions */
    __u64 frame_copy;      /* which copy it is, in free-threaded builds from 3.14 on; 0 is the code object's own */
    /* In a code object: */
    __u64 code_copies; /* the address of the number of copies, and of their addresses */
    __u64 code_instructions;
    __u64 code_type_offset; /* its type */
    __u64 ignored_words;   /* of a code object, a bit for each that changes */
    __u64 text;            /* which word has the name's address, up to 3.11; later it has a version */
    __u64 text_start;      /* in a string, PYTHON_TEXT_CHARACTERS before its characters */
    __u64 text_length;     /* from there to the length */
    __u64 text_is_bytes;   /* in 2.7, strings have no flags */
};

/* The frame is the outermost one of a call of the interpreter. */
#define PYTHON_ENTRY 1

struct python_frame {
    __u64 code;
    __u64 identity;
    __u32 position; /* from the start of the code object, or f_lasti */
    __u32 flags;
};

/* A call of the interpreter in 3.11 and 3.12, by its _PyCFrame. The interpreter stores the address of the
 * innermost one before its contents: those of an earlier call may still be there. They are those of a
 * call if its outermost frame has the caller's frame before it, and so on to the outermost call. Later
 * versions have the frames alone, which are stored in order. */
struct python_call {
    __u64 frame;  /* the innermost frame */
    __u64 before; /* the caller's _PyCFrame */
    __u64 caller; /* the caller's frame */
    __u64 innermost; /* the innermost call's _PyCFrame */
    __u64 retries[PYTHON_RETRIES]; /* possible _PyCFrames to walk again from, in order; 0 after the last one */
    __u32 tries;
    __u32 depth;
    __u32 is_outside; /* it is no call: the stack ends before it */
};

struct python_function {
    __u64 code;
    __u64 identity;
};

struct python_part {
    __u64 state; /* 0 for a thread that has none */
    __u32 holds_gil; /* or PYTHON_NO_GIL */
    __u32 is_truncated;
    __u32 count; /* of functions, which may be more than are kept */
    __u32 calls; /* those with PYTHON_ENTRY among them */
    /* The last PYTHON_OUTERMOST are a ring: each function that is too many takes the place of the oldest one there. */
    struct python_frame frame[PYTHON_FRAMES];
    /* The rest is not passed on. */
    __u64 is_retried; /* the walk has begun again */
    struct python_frame current; /* the frame that was read last */
    __u64 is_shim; /* it is no function: the frame before is the outermost one of a call of the interpreter */
    struct python_call call;
    __u64 next; /* the address of the next frame; 0 after the last one */
    __u64 is_listed; /* only the interpreter's list has the state */
    /* The owner of the last frame that was read, and 1 if it is the outermost one of a call. */
    __u64 owner;
    __u64 ends;
    /* Functions that were identified in this sample: the last two of each hash. */
    struct python_function functions[1 << PYTHON_FUNCTION_BITS][2];
    __u64 code_words[PYTHON_CODE_WORDS];
    __u64 text_words[PYTHON_TEXT_SIZE / 8];
    __u8 frame_bytes[PYTHON_FRAME_SIZE + 8];
};

_Static_assert(sizeof(struct python_configuration) <= STEP_CONFIGURATION_SIZE, "a configuration");
_Static_assert(sizeof(struct python_part) <= STEP_ROOM, "a part");
_Static_assert(PYTHON_INNERMOST % PYTHON_OUTERMOST == 0, "the ring begins where its index is 0");

/* The place of the function with this number. */
static __always_inline struct python_frame *python_place(struct python_part *part, __u32 number)
{
    __u64 place = number;
    if (place >= PYTHON_INNERMOST)
        place = PYTHON_INNERMOST + (place & (PYTHON_OUTERMOST - 1));
    HIDE(place);
    return &part->frame[place & (PYTHON_FRAMES - 1)];
}

/* The state that the thread has stored; 0 if there is none, or it cannot be read. */
static __always_inline __u64 python_stored_state(const struct python_configuration *python, __u64 tp)
{
    __u32 key;
    __u64 block, sequence, entry[2];
    if (!python->key && python->values == PYTHON_NO_FIELD)
        return 0;
    if (!python->key)
        return read_user(entry, sizeof entry[0], tp + python->values, 0) ? 0 : entry[0];
    if (read_user(&key, sizeof key, python->key, 0))
        return 0;
    __u64 number = key;
    if (!python->keys) {
        if (read_user(&block, sizeof block, tp + python->values, 0) || !block ||
            read_user(entry, sizeof entry[0], block + 8 * number, 0))
            return 0;
        return entry[0];
    }
    /* nptl/pthread_getspecific.c: 32 keys are in a block, and a value counts while its key is the same one. */
    if (read_user(&block, sizeof block, tp + python->values + 8 * (number / 32), 0) || !block ||
        read_user(entry, sizeof entry, block + python->entries + number % 32 * python->entry_size, 0) ||
        read_user(&sequence, sizeof sequence,
                  python->keys + number * python->key_size + python->key_sequence, 0) ||
        entry[0] != sequence)
        return 0;
    return entry[1];
}

/* Returns whether a state is the thread's: it has the result of pthread_self in its thread. */
static __always_inline int python_is_of_thread(const struct python_configuration *python, __u64 state,
                                               __u64 tp)
{
    __u64 thread;
    return state && !read_user(&thread, sizeof thread, state + python->state_thread, 0) &&
           thread == tp + python->thread_id;
}

static __always_inline __u32 python_holds_gil(const struct python_configuration *python, __u64 state)
{
    __u64 interpreter, gil, holder;
    __s32 locked, enabled;
    if (read_user(&interpreter, sizeof interpreter, state + python->state_interpreter, 0) ||
        read_user(&gil, sizeof gil, interpreter + python->gil, 0))
        return 0;
    if (python->gil_enabled != PYTHON_NO_FIELD &&
        !read_user(&enabled, sizeof enabled, gil + python->gil_enabled, 0) && !enabled)
        return PYTHON_NO_GIL;
    return !read_user(&holder, sizeof holder, gil + python->gil_holder, 0) && holder == state &&
           !read_user(&locked, sizeof locked, gil + python->gil_locked, 0) && locked == 1;
}

/* Returns whether the thread's stack contains an address; -1 if that is unknown. The C library puts the thread control
 * block at the end of each stack that it creates; the kernel creates that of the first thread. */
static __always_inline int python_is_on_stack(const struct thread_key *thread, __u64 tp, __u64 address)
{
    struct task_struct *task = current_task();
    __u64 start = stack_pointer(task), end = tp;
    if (thread->pid == thread->tid)
        end = BPF_CORE_READ(task, mm, start_stack);
    /* Signal handlers and coroutines can have stacks of their own, anywhere. */
    if (end - start > PYTHON_STACK_SIZE)
        return -1;
    return start <= address && address < end;
}

/* Up to 3.11, returns whether the thread executes with the state that has the GIL, which no thread stores; -1 if unknown.
 * 3.10 and 3.11 have the innermost call of the interpreter on the stack of the thread that executes. */
static __always_inline int python_executes(const struct python_configuration *python,
                                           const struct thread_key *thread, __u64 state, __u64 tp)
{
    __u64 call;
    if (python->state_call == PYTHON_NO_FIELD ||
        read_user(&call, sizeof call, state + python->state_call, 0) || call - state < PYTHON_STATE_SIZE)
        return -1;
    return python_is_on_stack(thread, tp, call);
}

/* Returns whether there are several interpreters. Called if the states that threads store are unknown. */
static __always_inline int python_has_several(const struct python_configuration *python)
{
    __u64 interpreter, next;
    return !read_user(&interpreter, sizeof interpreter, python->interpreters, 0) && interpreter &&
           !read_user(&next, sizeof next, interpreter + python->interpreter_next, 0) && next;
}

/* Up to 3.11, returns the state that has the GIL, if the thread executes with it; 0 if it does not, or if unknown. It can
 * be that of another interpreter, or have the ID of another thread, which has created it. */
static __always_inline __u64 python_holder(const struct python_configuration *python, struct python_part *part,
                                           const struct thread_key *thread, __u64 stored, __u64 tp)
{
    __u64 state, owner;
    int is_stored, executes;
    part->holds_gil = 0;
    if (!python->current || read_user(&state, sizeof state, python->current, 0) || !state ||
        read_user(&owner, sizeof owner, state + python->state_thread, 0))
        return 0;
    owner -= python->thread_id;
    /* If the states that threads store are unknown, the recorder knows only this thread's. */
    if (!python->key)
        is_stored = owner == tp ? thread_word(thread) == state : !python_has_several(python);
    else
        is_stored = (owner == tp ? stored : python_stored_state(python, owner)) == state;
    executes = is_stored ? owner == tp : python_executes(python, thread, state, tp);
    part->holds_gil = executes < 0 ? PYTHON_NO_GIL : executes;
    return executes == 1 ? state : 0;
}

/* From 3.12 on, returns the state that the thread uses now, which may be one of several; 0 for none, or if unknown. */
static __always_inline __u64 python_used_state(const struct python_configuration *python,
                                               struct python_part *part, __u64 tp)
{
    __u64 state;
    if (python->thread_current == PYTHON_NO_FIELD ||
        read_user(&state, sizeof state, tp + python->thread_current, 0) || !state)
        return 0;
    int is_own = python_is_of_thread(python, state, tp);
    part->holds_gil = python_holds_gil(python, state);
    /* It has the ID of the thread that created it: in 3.12, another thread may execute a subinterpreter with it. Then
     * that one has the GIL, according to its interpreter. */
    return is_own || part->holds_gil == 1 ? state : 0;
}

static __always_inline __u64 python_state(const struct python_configuration *python,
                                          struct python_part *part,
                                          const struct thread_key *thread, __u64 tp)
{
    __u64 state, stored = 0;
    int is_old = python->gil == PYTHON_NO_FIELD;
    /* In memory, of which the verifier does not know the contents: else it would follow all frames twice. */
    part->is_listed = 0;
    if (is_old) {
        stored = python_stored_state(python, tp);
        state = python_holder(python, part, thread, stored, tp);
    } else {
        state = python_used_state(python, part, tp);
    }
    if (state)
        return state;
    if (!is_old)
        stored = python_stored_state(python, tp);
    state = stored;
    if (!python_is_of_thread(python, state, tp)) {
        part->is_listed = 1;
        state = thread_word(thread);
        /* In 3.12, another thread may have created it. The recorder has found it in the list then, and the thread still
         * stores it. */
        int is_lent = state && state == stored && python->thread_current != PYTHON_NO_FIELD;
        if (!is_lent && !python_is_of_thread(python, state, tp))
            return 0;
    }
    if (!is_old)
        part->holds_gil = python_holds_gil(python, state);
    return state;
}

static __always_inline __u64 python_word(const struct python_part *part, __u64 offset)
{
    return *(__u64 *)(part->frame_bytes + (offset & (PYTHON_FRAME_SIZE - 1)));
}

static __always_inline __u8 python_byte(const struct python_part *part, __u64 offset)
{
    return part->frame_bytes[offset & (PYTHON_FRAME_SIZE - 1)];
}

static __always_inline __u64 python_mix(__u64 hash, __u64 word)
{
    hash = (hash ^ word) * PYTHON_FACTOR;
    return hash ^ hash >> 32;
}

/* Adds a string to a hash: its length and, if it is ASCII, its first 48 characters; none of those on the next
 * page, which may not be there. */
static __always_inline __u64 python_text(const struct python_configuration *python,
                                         struct python_part *part, __u64 address, __u64 hash)
{
    __u64 *words = part->text_words, start = address + python->text_start;
    __u64 size = 4096 - (start & 4095), count = 0;
    if (size > PYTHON_TEXT_SIZE)
        size = PYTHON_TEXT_SIZE;
    if (size < PYTHON_TEXT_CHARACTERS || read_user(words, size, start, 0))
        return hash;
    __u64 length = (__u32)(words[python->text_length / 8 & 1] >> (python->text_length * 8 & 63));
    if (python->text_is_bytes || words[2] & PYTHON_TEXT_IS_ASCII)
        count = size - PYTHON_TEXT_CHARACTERS;
    if (count > length)
        count = length;
    hash = python_mix(hash, length);
    HIDE(count);
#pragma unroll
    for (int i = 0; i < (PYTHON_TEXT_SIZE - PYTHON_TEXT_CHARACTERS) / 8; i++) {
        /* Without branches: the verifier would follow each. From 0 to 8 bytes of this word count. */
        __s64 left = (__s64)(count - 8 * i), below;
        left &= ~(left >> 63);
        below = (left - 8) >> 63;
        left = (left & below) | (8 & ~below);
        __u64 mask = ((1ULL << (left * 8 & 63)) - 1) | -((__u64)left >> 3);
        hash = python_mix(hash, words[PYTHON_TEXT_CHARACTERS / 8 + i] & mask);
    }
    return hash;
}

/* Returns a hash of the contents of a code object; 0 if there is none. */
static __always_inline __u64 python_identity(const struct python_configuration *python,
                                             struct python_part *part, __u64 code)
{
    __u64 lanes[PYTHON_LANES] = {}, hash = 0, ignored = python->ignored_words;
    if (read_user(part->code_words, sizeof part->code_words, code + python->code_type_offset, 0) ||
        part->code_words[0] != python->code_type)
        return 0;
    /* A processor does lanes side by side, where a single hash would have to wait for each word. */
#pragma unroll
    for (int i = 0; i < PYTHON_CODE_WORDS; i++) {
        __u64 word = part->code_words[i] & ((ignored >> i & 1) - 1);
        lanes[i % PYTHON_LANES] = (lanes[i % PYTHON_LANES] ^ word) * PYTHON_FACTOR;
    }
#pragma unroll
    for (int i = 0; i < PYTHON_LANES; i++)
        hash = python_mix(hash, lanes[i]);
    /* Without a version, objects of the same shape can have the same words, one after the other. */
    if (python->text != PYTHON_NO_FIELD)
        hash = python_text(python, part, part->code_words[python->text & (PYTHON_CODE_WORDS - 1)], hash);
    return hash;
}

/* Reads a _PyCFrame, and the innermost frame of its caller. */
static __always_inline int python_call(const struct python_configuration *python, struct python_call *call,
                                       __u64 state, __u64 c_frame)
{
    /* Both fields at once. */
    if (!c_frame || read_user(call, 16, c_frame + python->c_frame_current, 0))
        return 1;
    /* The thread state contains the first one, which has no frames. Each greenlet has another one, before which is
     * that. */
    int is_first = c_frame - state < PYTHON_STATE_SIZE || call->before - state < PYTHON_STATE_SIZE;
    call->is_outside = !call->frame && is_first;
    call->caller = 0;
    return !call->is_outside &&
           read_user(&call->caller, sizeof call->caller, call->before + python->c_frame_current, 0);
}

/* Keeps possible _PyCFrames of the innermost call's caller: the one that the call has stored, and registers, one of
 * which has it until shortly before it is stored. */
static __always_inline void python_keep_retries(void *context, struct python_call *call)
{
    const __u64 *registers = context;
    __u64 c_frame = call->innermost;
    __u64 count = !!call->retries[0];
    HIDE(count);
#pragma unroll
    for (int i = 0; i < PYTHON_REGISTERS; i++) {
        __u64 distance = registers[i] - c_frame;
        /* Without branches: the verifier would follow each. A caller's is further up the stack. */
        __u64 may_be = (distance - 8 - PYTHON_STACK_SIZE) >> 63 &
                       ~((distance - 8) >> 63) & ((distance & 7) - 1) >> 63;
        call->retries[count & (PYTHON_RETRIES - 1)] = registers[i];
        count += may_be & (count - (PYTHON_RETRIES - 1)) >> 63;
    }
    call->retries[count & (PYTHON_RETRIES - 1)] = 0;
}

/* Returns the next address to walk again from; 0 after the last one. */
static __always_inline __u64 python_next_retry(struct python_call *call)
{
    __u64 next = call->tries++;
    HIDE(next);
    return next < PYTHON_RETRIES ? call->retries[next & (PYTHON_RETRIES - 1)] : 0;
}

/* Returns the address of the instructions that a frame executes: in its code object, or in the thread's copy. 0
 * if it cannot be read. */
static __always_inline __u64 python_copy(const struct python_configuration *python,
                                         const struct python_part *part, __u64 code)
{
    __u64 copies, start;
    __u32 copy = python_word(part, python->frame_copy);
    if (!copy)
        return code + python->code_instructions;
    if (read_user(&copies, sizeof copies, code + python->code_copies, 0) ||
        read_user(&start, sizeof start, copies + 8 + 8 * (__u64)copy, 0))
        return 0;
    return start;
}

/* Reads the frame at `next`, and the address of the one after it; 1 if there is none. */
static __always_inline int python_frame(const struct python_configuration *python, struct python_part *part)
{
    struct python_frame *frame = &part->current;
    __u64 size = python->frame_size & (PYTHON_FRAME_SIZE - 1);
    HIDE(size);
    if (size >= PYTHON_FRAME_SIZE || read_user(part->frame_bytes, size, part->next + python->frame_start, 0))
        return 1;
    part->next = python_word(part, python->frame_previous);
    /* From 3.14 on, the lowest bits are flags. */
    frame->code = python_word(part, python->frame_code) & ~3ULL;
    __u64 position = python_word(part, python->frame_position);
    if (python->frame_copy != PYTHON_NO_FIELD)
        position -= python_copy(python, part, frame->code) - python->code_instructions;
    else if (!python->position_is_int)
        position -= frame->code;
    else
        position = (__u32)position;
    /* The largest number for an address elsewhere. */
    frame->position = position | (__s64)-(position >> 32) >> 63;
    /* Without branches: the verifier would follow each, for every frame. */
    __u64 mark = python_byte(part, python->frame_mark);
    __u64 is_entry = ((mark & python->entry_marks) + 0xff) >> 8;
    __u64 is_shim = (mark + 0x100 - python->shim_marks) >> 8;
    part->owner = python_byte(part, python->frame_owner);
    part->ends = is_entry | is_shim | python->all_are_entries;
    frame->flags = part->ends * PYTHON_ENTRY;
    part->is_shim = is_shim;
    if (is_shim)
        return 0;
    /* Recursion: there are more frames than functions. Each frame refers to the code object, which cannot be freed
     * while this thread is interrupted. If what was read is no frame, two addresses in one sample are still those of
     * one object, and the recorder compares the identity with the object that it reads later. */
    struct python_function *last = part->functions[frame->code * PYTHON_FACTOR >> (64 - PYTHON_FUNCTION_BITS)];
    if (frame->code == last[0].code) {
        frame->identity = last[0].identity;
    } else if (frame->code == last[1].code) {
        frame->identity = last[1].identity;
    } else {
        last[1] = last[0];
        last[0].code = frame->code;
        last[0].identity = frame->identity = python_identity(python, part, frame->code);
    }
    return !frame->identity;
}

/* Returns whether the end of a call fits the call; if it does, continues with the caller's call. */
static __always_inline int python_fits(const struct python_configuration *python, struct python_part *part)
{
    struct python_call *call = &part->call;
    if (part->next == call->caller) {
        call->depth++;
        return !python_call(python, call, part->state, call->before);
    }
    if (part->owner != PYTHON_OWNED_BY_GENERATOR)
        return 0;
    /* An exception is raised in a generator that delegates to another one: 3.11 does not enter the interpreter for
     * that, and the frame has the mark of when it did. */
    part->current.flags = 0;
    return 1;
}

enum python_outcome {
    PYTHON_NEXT,
    PYTHON_END,   /* the stack ends before this frame */
    PYTHON_AGAIN, /* neither this frame nor any before it is part of the stack */
};

/* Keeps the frame that was read last: a function, or the end of a call. */
static __always_inline void python_keep(struct python_part *part)
{
    __u32 count = part->count;
    if (!part->is_shim) {
        *python_place(part, count) = part->current;
        part->calls += part->current.flags;
        part->count = count + 1;
    } else if (count) {
        struct python_frame *last = python_place(part, count - 1);
        part->calls += !last->flags;
        last->flags = PYTHON_ENTRY;
    }
}

static __always_inline enum python_outcome python_take(const struct python_configuration *python,
                                                       struct python_part *part)
{
    struct python_call *call = &part->call;
    int has_calls = python->c_frame_current != PYTHON_NO_FIELD;
    if (!part->next) {
        /* If the innermost call is unknown, it may not be the only one. */
        if (has_calls ? call->is_outside && (!part->is_retried || part->count) : part->ends)
            part->is_truncated = 0;
        /* From 3.12 on, the caller of a generator is stored after the generator's frame. */
        else if (has_calls &&
                 (part->count != 1 || python->entry_marks || part->owner != PYTHON_OWNED_BY_GENERATOR))
            return PYTHON_AGAIN;
        return PYTHON_END;
    }
    if (python_frame(python, part))
        return has_calls && !call->depth ? PYTHON_AGAIN : PYTHON_END;
    /* The frame of a generator that does not run. */
    if (python->generator_state != PYTHON_NO_FIELD && part->owner == PYTHON_OWNED_BY_GENERATOR &&
        python_byte(part, python->generator_state) != PYTHON_EXECUTING)
        return PYTHON_AGAIN;
    if (has_calls && part->current.flags && !python_fits(python, part))
        return PYTHON_AGAIN;
    python_keep(part);
    return PYTHON_NEXT;
}

struct python_walk {
    void *context;
    const struct python_configuration *python;
    struct python_part *part;
};

/* Takes the next frame; 1 after the last one. */
static __always_inline long python_walk_frame(struct python_walk *walk)
{
    struct python_part *part = walk->part;
    struct python_call *call = &part->call;
    if (part->count >= PYTHON_WALKED)
        return 1;
    enum python_outcome outcome = python_take(walk->python, part);
    if (outcome != PYTHON_AGAIN)
        return outcome == PYTHON_END;
    part->count = part->calls = call->depth = 0;
    part->is_retried = 1;
    /* If this is not a _PyCFrame, it has no frame: the next address is tried. */
    part->next = 0;
    if (!call->tries)
        python_keep_retries(walk->context, call);
    __u64 retry = python_next_retry(call);
    if (!retry)
        return 1;
    if (!python_call(walk->python, call, part->state, retry))
        part->next = call->frame;
    return 0;
}

static long python_frame_of_loop(__u32 index __attribute__((unused)), struct python_walk *walk)
{
    return python_walk_frame(walk);
}

static __always_inline enum step_outcome cpython_step(void *context, struct part_head *part,
                                                      const void *configuration,
                                                      const struct thread_key *thread, int has_loops)
{
    const struct python_configuration *python = configuration;
    struct python_part *to = (void *)(part + 1);
    __u64 tp = OF_TASK(current_task(), THREAD_POINTER);
    struct python_walk walk = {.context = context, .python = python, .part = to};
    if (!tp)
        return STEP_DONE;
    to->state = python_state(python, to, thread, tp);
    if (!to->state)
        return unknown_thread(part, tp);
    to->is_truncated = to->ends = 1;
    to->count = to->calls = to->is_retried = 0;
    __builtin_memset(to->functions, 0, sizeof to->functions);
    struct python_call *call = &to->call;
    call->depth = call->is_outside = call->tries = 0;
    call->retries[0] = 0;
    if (read_user(&to->next, sizeof to->next, to->state + python->state_frame, 0))
        return STEP_MEMORY;
    if (python->c_frame_current != PYTHON_NO_FIELD) {
        call->innermost = to->next;
        to->next = 0;
        call->before = 0;
        if (!python_call(python, call, to->state, call->innermost))
            to->next = call->frame;
        call->retries[0] = call->before;
    }
    if (has_loops) {
        /* With an end of a call for each function. */
        bpf_loop(2 * PYTHON_WALKED, python_frame_of_loop, &walk, 0);
    } else {
        for (__u32 i = 0; i < PYTHON_WALKED_WITHOUT_LOOPS; i++)
            if (python_walk_frame(&walk))
                break;
    }
    /* Of a state that was freed, nothing may have changed: but when that was done, it had no frames. The thread may
     * have another one by now. */
    if (to->is_listed && !to->count)
        return unknown_thread(part, tp);
    __u64 kept = to->count;
    if (kept > PYTHON_FRAMES)
        kept = PYTHON_FRAMES;
    part->size = __builtin_offsetof(struct python_part, frame) + kept * sizeof to->frame[0];
    return STEP_DONE;
}
