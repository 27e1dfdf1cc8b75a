/* Lets Debian's static libevent go into our shared objects (libmooncake, the Python extension; not the commands).
 *
 * The archive is compiled for programs (-fPIE): it reaches `stderr`, the only variable of another library that it uses,
 * by a relocation that a shared object cannot have. These objects are linked with --wrap=stderr, so that every `stderr`
 * in them means the variable below, which lies in the object itself. It is set before anything of the object runs. All
 * other references of the archive are to functions, or to what becomes hidden in our object (--exclude-libs, the
 * version script): both are fine. */
#include <stdio.h>

extern FILE *__real_stderr; /* the C library's */
extern FILE *__wrap_stderr __attribute__((visibility("hidden")));
FILE *__wrap_stderr;

__attribute__((constructor(101))) static void shared_stderr_set(void)
{
    __wrap_stderr = __real_stderr;
}
