/* What libgcc's unwinder asks of glibc (since GCC 12), answered with what musl knows: which module
 * holds an address, and where its table of frames is.
 *
 * struct dl_find_object is glibc's <dlfcn.h>.
 */
#define _GNU_SOURCE
#include <link.h>
#include <pthread.h>
#include <stddef.h>

struct dl_find_object {
    unsigned long long flags;
    void *map_start;
    void *map_end;
    void *link_map;
    void *eh_frame;
    unsigned long long reserved[7];
};

struct search {
    ElfW(Addr) address;
    struct dl_find_object *result;
};

/* libgcc refers to these weakly: a static program would have some of them, and call the others at
 * address 0. */
__attribute__((used)) static void *const all_or_nothing[] = {
    pthread_once,        pthread_key_create, pthread_getspecific,
    pthread_setspecific, pthread_mutex_lock, pthread_mutex_unlock,
};

static int compare(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    struct search *search = argument;
    ElfW(Addr) frames = 0, start = 0, end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        ElfW(Addr) first = info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_GNU_EH_FRAME)
            frames = first;
        if (header->p_type == PT_LOAD && search->address - first < header->p_memsz) {
            start = first;
            end = first + header->p_memsz;
        }
    }
    if (frames == 0 || end == 0)
        return 0;
    search->result->map_start = (void *)start;
    search->result->map_end = (void *)end;
    search->result->eh_frame = (void *)frames;
    return 1;
}

int _dl_find_object(void *address, struct dl_find_object *result)
{
    struct search search = {(ElfW(Addr))address, result};
    return dl_iterate_phdr(compare, &search) == 1 ? 0 : -1;
}
