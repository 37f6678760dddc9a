/* A disk whose syncs fail while the file named by FAIL_SYNC exists. Preloaded into a test process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int failing(void) {
    const char *switch_file = getenv("FAIL_SYNC");
    return switch_file != NULL && access(switch_file, F_OK) == 0;
}

int fsync(int descriptor) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    if (failing()) { errno = EIO; return -1; }
    return real(descriptor);
}

int fdatasync(int descriptor) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    if (failing()) { errno = EIO; return -1; }
    return real(descriptor);
}
