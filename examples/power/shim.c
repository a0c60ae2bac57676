/* Records each change of the files below POWER_ROOT in the file POWER_TRACE.
 *
 * A replica is started with this library in LD_PRELOAD. Every operation is carried out, and then
 * described by a record. A sync is not carried out: it only waits for a short random time, and has
 * one record at its begin and one at its end. `trace.rs` reads the records, and `disk.rs` decides
 * about the bytes that a loss of power leaves.
 *
 * A record is written to the trace before the operation returns. So an operation that others have
 * noticed is always in the trace, even if the process is killed at once. */
#define _GNU_SOURCE
#define _LARGEFILE64_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define DESCRIPTORS_MAX 65536
#define PATH_BYTES 4096
/* Descriptor of the trace. It is so high that the process itself does not use it. */
#define TRACE_DESCRIPTOR 900
#define TRACE_FAILED 99

/* Head of a record. `length` bytes follow, unless they are all zeros and `zeros` is 1. */
struct record {
    uint64_t at_ns;
    uint64_t first;
    uint64_t second;
    int32_t descriptor;
    uint32_t length;
    uint8_t kind;
    uint8_t zeros;
    uint8_t unused[6];
} __attribute__((packed));

static unsigned char is_tracked[DESCRIPTORS_MAX];
static char root[PATH_BYTES];
static size_t root_length;
static int trace = -1;
static uint32_t delay_us_max;
static uint32_t delay_state = 1;
static uint64_t tickets;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void lock(void) { pthread_mutex_lock(&mutex); }

static void unlock(void) {
    int error = errno;
    pthread_mutex_unlock(&mutex);
    errno = error;
}

static uint64_t now_ns(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

__attribute__((constructor)) static void begin(void) {
    const char *root_given = getenv("POWER_ROOT");
    const char *trace_given = getenv("POWER_TRACE");
    const char *delay_given = getenv("POWER_DELAY_US");
    if (!root_given || !trace_given) return;
    strncpy(root, root_given, sizeof root - 1);
    root_length = strlen(root);
    if (delay_given) delay_us_max = atoi(delay_given);
    delay_state = (uint32_t)now_ns() | 1;
    int file = syscall(SYS_openat, AT_FDCWD, trace_given, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    trace = syscall(SYS_fcntl, file, F_DUPFD_CLOEXEC, TRACE_DESCRIPTOR);
    syscall(SYS_close, file);
    if (trace < 0) _exit(TRACE_FAILED);
}

static int is_below(const char *path) {
    if (trace < 0 || strncmp(path, root, root_length)) return 0;
    return path[root_length] == '/' || !path[root_length];
}

/* Stores the whole path of `path` in `whole`. Returns whether it is below the root. */
static int resolve(int folder, const char *path, char *whole) {
    if (trace < 0 || !path) return 0;
    if (path[0] == '/' || folder == AT_FDCWD) {
        if (strlen(path) >= PATH_BYTES) return 0;
        strcpy(whole, path);
        return is_below(whole);
    }
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = syscall(SYS_readlink, link, whole, PATH_BYTES - 1);
    if (length < 0 || length + strlen(path) + 2 > PATH_BYTES) return 0;
    whole[length] = '/';
    strcpy(whole + length + 1, path);
    return is_below(whole);
}

static void append(const void *bytes, size_t length) {
    const char *next = bytes;
    while (length) {
        long written = syscall(SYS_write, trace, next, length);
        if (written <= 0) _exit(TRACE_FAILED);
        next += written;
        length -= written;
    }
}

static int are_zeros(const char *bytes, size_t length) {
    return length && bytes[0] == 0 && !memcmp(bytes, bytes + 1, length - 1);
}

/* Writes a record. The caller holds the lock. */
static void put(char kind, int descriptor, uint64_t first, uint64_t second, const void *bytes, size_t length) {
    static char buffer[1 << 16];
    struct record head = {now_ns(), first, second, descriptor, length, kind, 0, {0}};
    head.zeros = kind == 'W' && are_zeros(bytes, length);
    if (head.zeros) length = 0;
    if (sizeof head + length > sizeof buffer) {
        append(&head, sizeof head);
        append(bytes, length);
        return;
    }
    memcpy(buffer, &head, sizeof head);
    if (length) memcpy(buffer + sizeof head, bytes, length);
    append(buffer, sizeof head + length);
}

static int tracks(int descriptor) {
    return trace >= 0 && descriptor >= 0 && descriptor < DESCRIPTORS_MAX && is_tracked[descriptor];
}

static void track(int descriptor, int value) {
    if (descriptor >= 0 && descriptor < DESCRIPTORS_MAX) is_tracked[descriptor] = value;
}

/* Opening and closing */

static int open_file(int folder, const char *path, int flags, mode_t mode) {
    char whole[PATH_BYTES];
    if (!resolve(folder, path, whole)) {
        int opened = syscall(SYS_openat, folder, path, flags, mode);
        track(opened, 0);
        return opened;
    }
    lock();
    int opened = syscall(SYS_openat, folder, path, flags, mode);
    if (opened >= DESCRIPTORS_MAX) _exit(TRACE_FAILED);
    if (opened >= 0) {
        track(opened, 1);
        put('O', opened, (unsigned)flags, 0, whole, strlen(whole));
    }
    unlock();
    return opened;
}

#define OPTIONAL_MODE                                  \
    mode_t mode = 0;                                   \
    if (flags & (O_CREAT | O_TMPFILE)) {               \
        va_list arguments;                             \
        va_start(arguments, flags);                    \
        mode = va_arg(arguments, int);                 \
        va_end(arguments);                             \
    }

int open(const char *path, int flags, ...) { OPTIONAL_MODE return open_file(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { OPTIONAL_MODE return open_file(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) {
    OPTIONAL_MODE return open_file(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
    OPTIONAL_MODE return open_file(folder, path, flags, mode);
}
int creat(const char *path, mode_t mode) {
    return open_file(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

static void forget(int descriptor) {
    track(descriptor, 0);
    put('C', descriptor, 0, 0, NULL, 0);
}

int close(int descriptor) {
    if (!tracks(descriptor)) return syscall(SYS_close, descriptor);
    lock();
    forget(descriptor);
    int result = syscall(SYS_close, descriptor);
    unlock();
    return result;
}

/* The C library closes the descriptor of a folder by itself. */
int closedir(DIR *folder) {
    static int (*original)(DIR *);
    if (!original) original = (int (*)(DIR *))dlsym(RTLD_NEXT, "closedir");
    int descriptor = dirfd(folder);
    if (!tracks(descriptor)) return original(folder);
    lock();
    forget(descriptor);
    int result = original(folder);
    unlock();
    return result;
}

/* Contents of files */

ssize_t write(int descriptor, const void *bytes, size_t length) {
    if (!tracks(descriptor)) return syscall(SYS_write, descriptor, bytes, length);
    lock();
    ssize_t written = syscall(SYS_write, descriptor, bytes, length);
    if (written > 0) {
        off_t end = syscall(SYS_lseek, descriptor, 0, SEEK_CUR);
        put('W', descriptor, end - written, 0, bytes, written);
    }
    unlock();
    return written;
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t length, off64_t offset) {
    if (!tracks(descriptor)) return syscall(SYS_pwrite64, descriptor, bytes, length, offset);
    lock();
    ssize_t written = syscall(SYS_pwrite64, descriptor, bytes, length, offset);
    if (written > 0) put('W', descriptor, offset, 0, bytes, written);
    unlock();
    return written;
}

ssize_t pwrite(int descriptor, const void *bytes, size_t length, off_t offset) {
    return pwrite64(descriptor, bytes, length, offset);
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    if (!tracks(descriptor)) return syscall(SYS_writev, descriptor, parts, count);
    ssize_t total = 0;
    for (int part = 0; part < count; part++) {
        ssize_t written = write(descriptor, parts[part].iov_base, parts[part].iov_len);
        if (written < 0) return total ? total : written;
        total += written;
        if ((size_t)written < parts[part].iov_len) break;
    }
    return total;
}

ssize_t pwritev64(int descriptor, const struct iovec *parts, int count, off64_t offset) {
    if (!tracks(descriptor)) return syscall(SYS_pwritev, descriptor, parts, count, offset, 0);
    ssize_t total = 0;
    for (int part = 0; part < count; part++) {
        ssize_t written = pwrite64(descriptor, parts[part].iov_base, parts[part].iov_len, offset + total);
        if (written < 0) return total ? total : written;
        total += written;
        if ((size_t)written < parts[part].iov_len) break;
    }
    return total;
}

ssize_t pwritev(int descriptor, const struct iovec *parts, int count, off_t offset) {
    return pwritev64(descriptor, parts, count, offset);
}

int ftruncate64(int descriptor, off64_t length) {
    if (!tracks(descriptor)) return syscall(SYS_ftruncate, descriptor, length);
    lock();
    int result = syscall(SYS_ftruncate, descriptor, length);
    if (!result) put('T', descriptor, length, 0, NULL, 0);
    unlock();
    return result;
}

int ftruncate(int descriptor, off_t length) { return ftruncate64(descriptor, length); }

int fallocate64(int descriptor, int mode, off64_t offset, off64_t length) {
    if (!tracks(descriptor)) return syscall(SYS_fallocate, descriptor, mode, offset, length);
    lock();
    int result = syscall(SYS_fallocate, descriptor, mode, offset, length);
    // A hole behind the end of a file frees reserved space, and changes no contents.
    struct stat found;
    if (mode == (FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE) && !fstat(descriptor, &found) && found.st_size <= offset)
        mode = FALLOC_FL_KEEP_SIZE;
    if (!result) put('A', descriptor, offset + length, mode, NULL, 0);
    unlock();
    return result;
}

int fallocate(int descriptor, int mode, off_t offset, off_t length) {
    return fallocate64(descriptor, mode, offset, length);
}
int posix_fallocate64(int descriptor, off64_t offset, off64_t length) {
    return fallocate64(descriptor, 0, offset, length) ? errno : 0;
}
int posix_fallocate(int descriptor, off_t offset, off_t length) {
    return posix_fallocate64(descriptor, offset, length);
}

/* Syncs */

static void wait_for_the_disk(void) {
    if (!delay_us_max) return;
    uint32_t drawn = __sync_add_and_fetch(&delay_state, 0x9e3779b9u);
    drawn ^= drawn >> 15;
    drawn *= 0x85ebca6bu;
    drawn ^= drawn >> 13;
    struct timespec delay = {0, (long)(drawn % delay_us_max) * 1000};
    syscall(SYS_nanosleep, &delay, 0);
}

static int sync_file(int descriptor, int call) {
    if (!tracks(descriptor)) return syscall(call, descriptor);
    lock();
    uint64_t ticket = ++tickets;
    put('s', descriptor, ticket, 0, NULL, 0);
    unlock();
    wait_for_the_disk();
    lock();
    put('S', descriptor, ticket, 0, NULL, 0);
    unlock();
    return 0;
}

int fsync(int descriptor) { return sync_file(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return sync_file(descriptor, SYS_fdatasync); }

/* Entries of folders */

static int change_two(char kind, int call, int folder, const char *path, int other_folder, const char *other,
                      unsigned flags) {
    char whole[PATH_BYTES], other_whole[PATH_BYTES], both[2 * PATH_BYTES + 2];
    int is_first = resolve(folder, path, whole);
    int is_second = resolve(other_folder, other, other_whole);
    if (!is_first && !is_second) return syscall(call, folder, path, other_folder, other, flags);
    lock();
    int result = syscall(call, folder, path, other_folder, other, flags);
    if (!result && is_first != is_second) kind = '?';
    if (!result) put(kind, -1, flags, 0, both, snprintf(both, sizeof both, "%s\n%s", whole, other_whole));
    unlock();
    return result;
}

int rename(const char *from, const char *to) {
    return change_two('R', SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int folder, const char *from, int other, const char *to) {
    return change_two('R', SYS_renameat2, folder, from, other, to, 0);
}
int renameat2(int folder, const char *from, int other, const char *to, unsigned flags) {
    return change_two(flags ? '?' : 'R', SYS_renameat2, folder, from, other, to, flags);
}
int link(const char *from, const char *to) {
    return change_two('H', SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int linkat(int folder, const char *from, int other, const char *to, int flags) {
    return change_two('H', SYS_linkat, folder, from, other, to, flags);
}

static int change_one(char kind, int call, int folder, const char *path, int argument) {
    char whole[PATH_BYTES];
    if (!resolve(folder, path, whole)) return syscall(call, folder, path, argument);
    lock();
    int result = syscall(call, folder, path, argument);
    if (!result) put(kind, -1, argument, 0, whole, strlen(whole));
    unlock();
    return result;
}

int unlink(const char *path) { return change_one('U', SYS_unlinkat, AT_FDCWD, path, 0); }
int rmdir(const char *path) { return change_one('U', SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR); }
int unlinkat(int folder, const char *path, int flags) {
    return change_one('U', SYS_unlinkat, folder, path, flags);
}
int remove(const char *path) {
    if (!unlink(path)) return 0;
    return errno == EISDIR ? rmdir(path) : -1;
}
int mkdir(const char *path, mode_t mode) { return change_one('M', SYS_mkdirat, AT_FDCWD, path, mode); }
int mkdirat(int folder, const char *path, mode_t mode) {
    return change_one('M', SYS_mkdirat, folder, path, mode);
}

/* Calls that change files in ways of which the trace has no records */

static void refuse(const char *call, int descriptor) {
    lock();
    put('?', descriptor, 0, 0, call, strlen(call));
    unlock();
}

ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *other, size_t length, unsigned flags) {
    if (tracks(to)) refuse("copy_file_range", to);
    return syscall(SYS_copy_file_range, from, at, to, other, length, flags);
}

void *mmap64(void *address, size_t length, int access, int flags, int descriptor, off64_t offset) {
    if ((flags & MAP_SHARED) && (access & PROT_WRITE) && tracks(descriptor)) refuse("mmap", descriptor);
    return (void *)syscall(SYS_mmap, address, length, access, flags, descriptor, offset);
}

void *mmap(void *address, size_t length, int access, int flags, int descriptor, off_t offset) {
    return mmap64(address, length, access, flags, descriptor, offset);
}

int truncate64(const char *path, off64_t length) {
    if (trace >= 0 && is_below(path)) refuse("truncate", -1);
    return syscall(SYS_truncate, path, length);
}

int truncate(const char *path, off_t length) { return truncate64(path, length); }

int syncfs(int descriptor) {
    if (tracks(descriptor)) refuse("syncfs", descriptor);
    return syscall(SYS_syncfs, descriptor);
}
