/* copy FOLDER: copies the files that are next to this program into the folder. This is the only program in the
 * image of an init container.
 *
 * A file gets its final name only when it is complete. If a program has mapped the file of an earlier version, that
 * file stays unchanged. Exit status: 0; 1 with a line on standard error. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int failed(const char *what) {
    fprintf(stderr, "tllmprof: %s: %s\n", what, strerror(errno));
    return 1;
}

static int copy(const char *from, const char *folder, const char *name) {
    char part[PATH_MAX], whole[PATH_MAX], bytes[65536];
    struct stat about;
    ssize_t length;
    int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0 || fstat(in, &about) != 0)
        return failed(from);
    snprintf(whole, sizeof whole, "%s/%s", folder, name);
    snprintf(part, sizeof part, "%s/.%s.part", folder, name);
    unlink(part);
    int out = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (out < 0)
        return failed(part);
    while ((length = read(in, bytes, sizeof bytes)) != 0) {
        if (length < 0)
            return failed(from);
        for (ssize_t done = 0, written; done < length; done += written)
            if ((written = write(out, bytes + done, length - done)) < 0)
                return failed(part);
    }
    if (fchmod(out, about.st_mode & 0755) != 0 || close(out) != 0)
        return failed(part);
    if (rename(part, whole) != 0)
        return failed(whole);
    return close(in);
}

int main(int argc, char **argv) {
    char here[PATH_MAX], from[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", here, sizeof here - 1);
    if (argc != 2) {
        fputs("tllmprof: wanted: the folder to copy to, such as that of an emptyDir volume\n", stderr);
        return 1;
    }
    if (length < 0)
        return failed("/proc/self/exe");
    here[length] = 0;
    const char *own = strrchr(here, '/') + 1;
    char own_name[NAME_MAX + 1];
    snprintf(own_name, sizeof own_name, "%s", own);
    here[own - here] = 0;
    DIR *files = opendir(here);
    if (!files)
        return failed(here);
    for (struct dirent *file; (file = readdir(files));) {
        struct stat about;
        if (snprintf(from, sizeof from, "%s%s", here, file->d_name) >= (int)sizeof from)
            continue;
        if (strcmp(file->d_name, own_name) == 0 || stat(from, &about) != 0 || !S_ISREG(about.st_mode))
            continue;
        if (copy(from, argv[1], file->d_name) != 0)
            return 1;
    }
    return closedir(files);
}
