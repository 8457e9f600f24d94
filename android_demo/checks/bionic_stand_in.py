"""Lets a Linux process load libonnxruntime.so of the Android archive: ``bionic_stand_in.py LIBRARY OUT``.

Android's libraries want Android's libc (bionic) under the names libc.so, libm.so, libdl.so, liblog.so and libandroid.so. This makes
small libraries of these names in OUT whose functions jump to glibc's. Where the two differ in what they pass, there is C code.
With LD_LIBRARY_PATH=OUT and LD_PRELOAD=OUT/libguard.so the library's kernels and its C API then run here: no test of bionic, of
Android's linker, of speed or of memory. x86_64 runs as it is, arm64 in an arm64 Python under qemu-user. Needs readelf and a C compiler
for the architecture (CC, else cc or aarch64-linux-gnu-gcc).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

# Functions whose arguments or results differ, and what only bionic has.
DIFFERENT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

FILE *own_stdin, *own_stdout, *own_stderr;
char own___sF[3 * 512];

int *own___errno(void) { return __errno_location(); }
char *own___gnu_strerror_r(int code, char *text, size_t size) { return strerror_r(code, text, size); }
extern int __xpg_strerror_r(int, char *, size_t);
int own_strerror_r(int code, char *text, size_t size) { return __xpg_strerror_r(code, text, size); }
size_t own___strlen_chk(const char *text, size_t size) { (void)size; return strlen(text); }
char *own___strchr_chk(const char *text, int c, size_t size) { (void)size; return strchr(text, c); }
int own___FD_ISSET_chk(int fd, const fd_set *set, size_t size) { (void)size; return FD_ISSET(fd, set) != 0; }
void own___FD_SET_chk(int fd, fd_set *set, size_t size) { (void)size; FD_SET(fd, set); }
void own_android_set_abort_message(const char *text) { fprintf(stderr, "abort: %s\n", text); }
int own___system_property_get(const char *name, char *value) { (void)name; *value = 0; return 0; }

/* A set of signals has 8 bytes in bionic and 128 in glibc. */
int own_sigfillset(uint64_t *set) { *set = ~UINT64_C(0); return 0; }
int own_pthread_sigmask(int how, const uint64_t *set, uint64_t *old) {
  return syscall(SYS_rt_sigprocmask, how, set, old, 8) == 0 ? 0 : errno;
}

/* Their numbers are other ones. */
long own_sysconf(int name) {
  switch (name) {
    case 39: case 40: return sysconf(_SC_PAGESIZE);
    case 96: return sysconf(_SC_NPROCESSORS_CONF);
    case 97: return sysconf(_SC_NPROCESSORS_ONLN);
    case 98: return sysconf(_SC_PHYS_PAGES);
    case 99: return sysconf(_SC_AVPHYS_PAGES);
    default: errno = EINVAL; return -1;
  }
}

/* The same layout within the 40 bytes that bionic has for it; glibc has 48 on arm64 and clears them. */
int own_pthread_mutex_init(void *mutex, const pthread_mutexattr_t *how) {
  pthread_mutex_t made;
  int code = pthread_mutex_init(&made, how);
  memcpy(mutex, &made, 40);
  return code;
}

/* 56 bytes in bionic, on arm64 64 in glibc: the caller's hold a pointer. */
int own_pthread_attr_init(pthread_attr_t **how) { *how = malloc(sizeof **how); return pthread_attr_init(*how); }
int own_pthread_attr_setstacksize(pthread_attr_t **how, size_t size) { return pthread_attr_setstacksize(*how, size); }
int own_pthread_create(pthread_t *thread, pthread_attr_t *const *how, void *(*run)(void *), void *argument) {
  return pthread_create(thread, how ? *how : NULL, run, argument);
}

#ifdef __x86_64__
/* long double has 128 bits there. */
__float128 own_strtold_l(const char *text, char **end, locale_t locale) { return (__float128)strtold_l(text, end, locale); }
long long own_llroundl(__float128 value) { return llroundl((long double)value); }
#endif

struct entry { const char *name; void **place; };
extern const struct entry entries[];
__attribute__((constructor)) static void resolve(void) {
  own_stdin = stdin; own_stdout = stdout; own_stderr = stderr;
  for (const struct entry *item = entries; item->name; item++) {
    *item->place = dlsym(RTLD_DEFAULT, item->name);
    if (!*item->place) fprintf(stderr, "stand-in: glibc has no %s\n", item->name);
  }
}
"""
DATA = ("stdin", "stdout", "stderr", "__sF")
LOG = """
int __android_log_print(int p, const char *t, const char *f, ...) { (void)p; (void)t; (void)f; return 0; }
int __android_log_vprint(int p, const char *t, const char *f, __builtin_va_list a) { (void)p; (void)t; (void)f; (void)a; return 0; }
int __android_log_write(int p, const char *t, const char *x) { (void)p; (void)t; (void)x; return 0; }
"""
# The compiler's guard of the stack is at a fixed place behind the thread pointer. On arm64 that is within the thread's variables of
# what was loaded first: this library's, which nobody changes.
GUARD = """
__thread char guard[256] __attribute__((tls_model("initial-exec")));
char *stand_in_guard(void) { return guard; }
"""
JUMP = {
    "x86_64": "jmp *{pointer}(%rip)",
    "aarch64": "adrp x16, {pointer}; ldr x16, [x16, :lo12:{pointer}]; br x16",
}
COMPILER = {"x86_64": "cc", "aarch64": "aarch64-linux-gnu-gcc"}
X86_ONLY = {"strtold_l", "llroundl"}


def wanted(library: Path) -> tuple[str, list[str]]:
    """Architecture of a library, and the functions that it wants of bionic."""
    head = subprocess.run(["readelf", "-h", library], check=True, capture_output=True, text=True).stdout
    machine = "x86_64" if "X86-64" in head else "aarch64" if "AArch64" in head else "unknown"
    table = subprocess.run(["readelf", "-W", "--dyn-syms", library], check=True, capture_output=True, text=True).stdout
    return machine, sorted(set(re.findall(r"UND (\S+)@LIBC", table)))


def build(library: Path, out: Path) -> None:
    """Write and compile the five libraries."""
    machine, names = wanted(library)
    if machine not in JUMP:
        raise SystemExit(f"{library}: {machine} is not known here")
    own = set(re.findall(r"\bown_(\w+)\(", DIFFERENT)) | set(DATA)
    own -= X86_ONLY if machine != "x86_64" else set()
    jumps = [name for name in names if name not in own]
    lines = [".text"]
    for name in jumps:
        lines += [f".globl jump_{name}", f".type jump_{name}, %function", f"jump_{name}: {JUMP[machine].format(pointer=f'pointer_{name}')}"]
        lines += [f".symver jump_{name}, {name}@LIBC"]
    lines += [".data", *(f".local pointer_{name}\n.comm pointer_{name}, 8, 8" for name in jumps)]
    lines += [".section .rodata", *(f'text_{name}: .string "{name}"' for name in jumps)]
    lines += ['.section .data.rel.ro, "aw"', ".balign 8", ".globl entries", "entries:"]
    lines += [*(f".quad text_{name}, pointer_{name}" for name in jumps), ".quad 0, 0", '.section .note.GNU-stack, "", %progbits']
    out.mkdir(parents=True, exist_ok=True)
    (out / "jumps.s").write_text("\n".join(lines) + "\n")
    versions = [f'__asm__(".symver own_{name}, {name}@LIBC");' for name in names if name in own]
    (out / "different.c").write_text(DIFFERENT + "\n".join(versions) + "\n")
    (out / "versions").write_text("LIBC { global: *; };\n")
    (out / "log.c").write_text(LOG)
    (out / "guard.c").write_text(GUARD)
    (out / "nothing.c").write_text("int stand_in_for_bionic;\n")

    def link(name: str, *sources: str, version: bool = True) -> None:
        script = [f"-Wl,--version-script={out / 'versions'}"] if version else []
        files = [str(out / source) for source in sources]
        command = [
            os.environ.get("CC") or COMPILER[machine],
            "-shared",
            "-fPIC",
            "-O1",
            f"-Wl,-soname,{name}",
            *script,
            "-o",
            str(out / name),
            *files,
            "-lm",
        ]
        subprocess.run(command, check=True)

    link("libc.so", "different.c", "jumps.s")
    link("libm.so", "nothing.c")
    link("libdl.so", "nothing.c")
    link("liblog.so", "log.c", version=False)
    link("libandroid.so", "nothing.c", version=False)
    link("libguard.so", "guard.c", version=False)


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
