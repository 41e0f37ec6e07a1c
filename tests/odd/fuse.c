/* fuse FOLDER PROGRAM...: runs a program with a file system mounted at FOLDER. The file system has one folder of
 * files and writes them through. It lacks what network and user-space file systems lack: shared mappings, reserved
 * space, links and locks. It speaks the kernel's FUSE protocol itself, so no library is needed. The exit status is
 * 77 if the machine does not allow it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILES = 16, BUFFER = 1 << 20, ROOM = 32 << 20 };

/* A file's node number is its index plus 2. Node 1 is the folder. */
static struct file {
    char name[256];
    char *bytes;
    uint64_t size;
} files[FILES];

static int device;

static void answer(uint64_t unique, int error, const void *data, size_t size)
{
    static char out[BUFFER + sizeof(struct fuse_out_header)];
    struct fuse_out_header header = {(uint32_t)(sizeof header + size), error, unique};
    memcpy(out, &header, sizeof header);
    if (size > 0)
        memcpy(out + sizeof header, data, size);
    if (write(device, out, header.len) < 0 && errno != ENOENT)
        _exit(1);
}

static struct fuse_attr attributes(uint64_t node)
{
    struct fuse_attr attributes = {.ino = node, .mode = S_IFDIR | 0700, .nlink = 2, .blksize = 4096};
    if (node != 1) {
        attributes.mode = S_IFREG | 0600;
        attributes.nlink = 1;
        attributes.size = files[node - 2].size;
    }
    return attributes;
}

static struct fuse_entry_out entry(uint64_t node)
{
    struct fuse_entry_out entry = {.nodeid = node, .attr = attributes(node)};
    return entry;
}

static int find(const char *name)
{
    for (int n = 0; n < FILES; n++)
        if (files[n].bytes != NULL && strcmp(files[n].name, name) == 0)
            return n;
    return -1;
}

static int make(const char *name)
{
    for (int n = 0; n < FILES; n++)
        if (files[n].bytes == NULL) {
            snprintf(files[n].name, sizeof files[n].name, "%.255s", name);
            files[n].bytes = calloc(1, ROOM);
            files[n].size = 0;
            return n;
        }
    return -1;
}

static void serve(struct fuse_in_header *in, char *body)
{
    const uint64_t node = in->nodeid, unique = in->unique;
    struct file *file = node >= 2 && node < 2 + FILES ? &files[node - 2] : NULL;
    switch (in->opcode) {
    case FUSE_INIT: {
        struct fuse_init_out out = {.major = 7, .minor = 31, .max_readahead = 0, .max_write = 64 << 10};
        answer(unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_LOOKUP: {
        int n = find(body);
        if (n < 0) {
            answer(unique, -ENOENT, NULL, 0);
            return;
        }
        struct fuse_entry_out out = entry((uint64_t)n + 2);
        answer(unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_GETATTR: {
        struct fuse_attr_out out = {.attr = attributes(node)};
        answer(unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_SETATTR: {
        const struct fuse_setattr_in *set = (const void *)body;
        if (file != NULL && (set->valid & FATTR_SIZE) && set->size <= ROOM)
            file->size = set->size;
        struct fuse_attr_out out = {.attr = attributes(node)};
        answer(unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_CREATE: {
        struct {
            struct fuse_entry_out entry;
            struct fuse_open_out open;
        } out;
        int n = make(body + sizeof(struct fuse_create_in));
        if (n < 0) {
            answer(unique, -ENOSPC, NULL, 0);
            return;
        }
        memset(&out, 0, sizeof out);
        out.entry = entry((uint64_t)n + 2);
        out.open.open_flags = FOPEN_DIRECT_IO;
        answer(unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_OPEN:
    case FUSE_OPENDIR: {
        struct fuse_open_out out = {.open_flags = in->opcode == FUSE_OPEN ? FOPEN_DIRECT_IO : 0};
        answer(unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_READ: {
        const struct fuse_read_in *read = (const void *)body;
        uint64_t left = read->offset < file->size ? file->size - read->offset : 0;
        answer(unique, 0, file->bytes + read->offset, left < read->size ? left : read->size);
        return;
    }
    case FUSE_WRITE: {
        const struct fuse_write_in *written = (const void *)body;
        if (written->offset + written->size > ROOM) {
            answer(unique, -ENOSPC, NULL, 0);
            return;
        }
        memcpy(file->bytes + written->offset, body + sizeof *written, written->size);
        if (file->size < written->offset + written->size)
            file->size = written->offset + written->size;
        struct fuse_write_out out = {.size = written->size};
        answer(unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_READDIR: {
        static char list[BUFFER];
        const struct fuse_read_in *read = (const void *)body;
        size_t used = 0;
        for (int n = (int)read->offset; n < FILES; n++) {
            size_t length = strlen(files[n].name);
            if (files[n].bytes == NULL)
                continue;
            struct fuse_dirent *next = (struct fuse_dirent *)(list + used);
            if (used + FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + length) > read->size)
                break;
            memset(next, 0, FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + length));
            next->ino = (uint64_t)n + 2;
            next->off = (uint64_t)n + 1;
            next->namelen = (uint32_t)length;
            next->type = DT_REG;
            memcpy(next->name, files[n].name, length);
            used += FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + length);
        }
        answer(unique, 0, list, used);
        return;
    }
    case FUSE_UNLINK: {
        int n = find(body);
        if (n >= 0)
            files[n].name[0] = '\0';
        answer(unique, n < 0 ? -ENOENT : 0, NULL, 0);
        return;
    }
    case FUSE_FLUSH:
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
    case FUSE_FSYNC:
    case FUSE_ACCESS:
        answer(unique, 0, NULL, 0);
        return;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        return;
    default:
        answer(unique, -ENOSYS, NULL, 0);
    }
}

int main(int argc, char **argv)
{
    char options[128];
    if (argc < 3)
        return 2;
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%u,group_id=%u", device, getuid(), getgid());
    if (device < 0 || mount("odd", argv[1], "fuse", MS_NOSUID | MS_NODEV, options) != 0)
        return 77;
    pid_t server = fork();
    if (server == 0) {
        static char in[BUFFER];
        for (;;) {
            ssize_t size = read(device, in, sizeof in);
            if (size < 0 && errno != EINTR && errno != ENOENT)
                _exit(0);
            if (size >= (ssize_t)sizeof(struct fuse_in_header))
                serve((struct fuse_in_header *)in, in + sizeof(struct fuse_in_header));
        }
    }
    close(device);
    pid_t program = fork();
    if (program == 0) {
        execvp(argv[2], argv + 2);
        _exit(127);
    }
    int status = 0;
    waitpid(program, &status, 0);
    umount2(argv[1], MNT_DETACH);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
