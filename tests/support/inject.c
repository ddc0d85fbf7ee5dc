// inject: runs a program and makes one of its accesses to files below a folder fail, or kills it there.
//
//	inject DIR CLASS MODE AT REPORT PROGRAM ARGUMENT...
//
// CLASS   writes  what changes files: write, fsync, rename, link, unlink, mkdir, open to write, lock, ...
//         reads   open to read, read, directory listings
// MODE    count   nothing happens
//         eio     access number AT (from 0) fails with EIO
//         enospc  it and all later ones fail with ENOSPC
//         short   half of it is written or read
//         kill    SIGKILL before it
//         done    SIGKILL after it
//         torn    SIGKILL after half of it is written
// REPORT  a file that gets how many accesses there were, and which one was hit
//
// It ends as the program ends. The program's system calls are seen by seccomp and ptrace, so it does
// not matter which library makes them, and in which thread.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __x86_64__
#error "registers are those of x86-64"
#endif

// Where a call's path is: a descriptor, or a path after a descriptor of a folder or alone.
enum place { FD, PATH, AT_PATH };
enum class { WRITES, READS, OPENS };
static const struct call {
  int number;
  enum place place;
  enum class class;
  const char *name;
} calls[] = {
    {SYS_write, FD, WRITES, "write"},
    {SYS_pwrite64, FD, WRITES, "pwrite"},
    {SYS_writev, FD, WRITES, "writev"},
    {SYS_fsync, FD, WRITES, "fsync"},
    {SYS_fdatasync, FD, WRITES, "fdatasync"},
    {SYS_ftruncate, FD, WRITES, "ftruncate"},
    {SYS_fallocate, FD, WRITES, "fallocate"},
    {SYS_flock, FD, WRITES, "flock"},
    {SYS_fchmod, FD, WRITES, "fchmod"},
    {SYS_rename, PATH, WRITES, "rename"},
    {SYS_renameat, AT_PATH, WRITES, "renameat"},
    {SYS_renameat2, AT_PATH, WRITES, "renameat2"},
    {SYS_link, PATH, WRITES, "link"},
    {SYS_linkat, AT_PATH, WRITES, "linkat"},
    {SYS_unlink, PATH, WRITES, "unlink"},
    {SYS_unlinkat, AT_PATH, WRITES, "unlinkat"},
    {SYS_mkdir, PATH, WRITES, "mkdir"},
    {SYS_mkdirat, AT_PATH, WRITES, "mkdirat"},
    {SYS_open, PATH, OPENS, "open"},
    {SYS_openat, AT_PATH, OPENS, "openat"},
    {SYS_read, FD, READS, "read"},
    {SYS_pread64, FD, READS, "pread"},
    {SYS_getdents64, FD, READS, "getdents"},
};
enum { CALLS = sizeof calls / sizeof *calls };

static void fail(const char *what) {
  perror(what);
  exit(99);
}

static void watch_calls(void) {
  struct sock_filter filter[CALLS + 4];
  int at = 0;
  filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (int i = 0; i < CALLS; i++)
    filter[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].number, CALLS - i, 0);
  filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
  struct sock_fprog program = {.len = at, .filter = filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) fail("seccomp");
}

static int link_target(char *to, size_t size, const char *format, pid_t pid, long fd) {
  char link[64];
  snprintf(link, sizeof link, format, pid, fd);
  ssize_t length = readlink(link, to, size - 1);
  to[length < 0 ? 0 : length] = 0;
  return length > 0;
}

// The path that a call is about.
static int path_of(pid_t pid, const struct call *call, const struct user_regs_struct *regs, char *path, size_t size) {
  if (call->place == FD) return link_target(path, size, "/proc/%d/fd/%ld", pid, (int)regs->rdi);
  char name[4096] = "";
  unsigned long from = call->place == PATH ? regs->rdi : regs->rsi;
  struct iovec local = {name, sizeof name - 1}, remote = {(void *)from, sizeof name - 1};
  // What lies behind the end of a page need not be readable.
  remote.iov_len = local.iov_len = 4096 - from % 4096;
  ssize_t length = process_vm_readv(pid, &local, 1, &remote, 1, 0);
  if (length > 0 && !memchr(name, 0, length) && length < (ssize_t)sizeof name - 1) {
    struct iovec local2 = {name + length, sizeof name - 1 - length};
    struct iovec remote2 = {(void *)(from + length), local2.iov_len};
    process_vm_readv(pid, &local2, 1, &remote2, 1, 0);
  }
  int dir = call->place == PATH ? AT_FDCWD : (int)regs->rdi;
  char base[4096] = "";
  if (name[0] != '/') {
    if (dir == AT_FDCWD) link_target(base, sizeof base, "/proc/%d/cwd%.0ld", pid, 0);
    else link_target(base, sizeof base, "/proc/%d/fd/%ld", pid, dir);
  }
  return snprintf(path, size, "%s%s%s", base, name[0] == '/' ? "" : "/", name) > 0;
}

static pid_t child;

// A signal to end is for the program.
static void pass_on(int signal) { kill(child, signal); }

int main(int count, char **arguments) {
  if (count < 7) {
    fprintf(stderr, "usage: inject DIR CLASS MODE AT REPORT PROGRAM ARGUMENT...\n");
    return 99;
  }
  const char *dir = arguments[1], *mode = arguments[3], *report = arguments[5];
  int wants_reads = !strcmp(arguments[2], "reads");
  long at = atol(arguments[4]), seen = 0;
  char hit[8300] = "";
  child = fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, 0, 0)) fail("ptrace");
    raise(SIGSTOP);
    watch_calls();
    execvp(arguments[6], arguments + 6);
    fail(arguments[6]);
  }
  sigaction(SIGTERM, &(struct sigaction){.sa_handler = pass_on, .sa_flags = SA_RESTART}, 0);
  int status;
  if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status)) return 99;
  long options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                 PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD;
  if (ptrace(PTRACE_SETOPTIONS, child, 0, options)) fail("ptrace");
  ptrace(PTRACE_CONT, child, 0, 0);
  for (;;) {
    pid_t pid = waitpid(-1, &status, __WALL);
    if (pid < 0) fail("wait");
    if (!WIFSTOPPED(status)) {
      if (pid != child) continue;
      break;
    }
    int signal = WSTOPSIG(status), event = status >> 16;
    if (signal == (SIGTRAP | 0x80)) { // the end of the call that the process is not to survive
      kill(child, SIGKILL);
      continue;
    }
    if (event != PTRACE_EVENT_SECCOMP) {
      // A new thread begins with SIGSTOP, which is not for it.
      ptrace(PTRACE_CONT, pid, 0, event || signal == SIGSTOP || signal == SIGTRAP ? 0 : signal);
      continue;
    }
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, pid, 0, &regs)) continue;
    const struct call *call = calls;
    while (call->number != (int)regs.orig_rax) call++;
    unsigned long flags = call->place == PATH ? regs.rsi : regs.rdx;
    int is_read = call->class == READS || (call->class == OPENS && (flags & O_ACCMODE) == O_RDONLY);
    char path[8192] = "";
    int is_ours = is_read == wants_reads && path_of(pid, call, &regs, path, sizeof path) &&
                  !strncmp(path, dir, strlen(dir)) && path[strlen(dir)] == '/';
    long number = is_ours ? seen++ : -1;
    int is_from = !strcmp(mode, "enospc");
    int is_hit = is_ours && strcmp(mode, "count") && (number == at || (is_from && number > at));
    // Files can be closed, unlinked and unlocked on a full disk.
    if (is_hit && is_from && (strstr(call->name, "unlink") || call->number == SYS_flock)) is_hit = 0;
    int resume = PTRACE_CONT;
    if (is_hit) {
      if (!*hit) snprintf(hit, sizeof hit, "%s %s", call->name, path);
      int is_data = call->number == SYS_write || call->number == SYS_pwrite64 || call->number == SYS_read ||
                    call->number == SYS_pread64;
      if (!strcmp(mode, "eio") || is_from) {
        regs.orig_rax = -1;
        regs.rax = is_from ? -ENOSPC : -EIO;
      } else if (!strcmp(mode, "kill")) {
        kill(child, SIGKILL);
      } else {
        if (strcmp(mode, "done") && is_data && regs.rdx > 1) regs.rdx /= 2;
        if (strcmp(mode, "short")) resume = PTRACE_SYSCALL;
      }
      ptrace(PTRACE_SETREGS, pid, 0, &regs);
    }
    ptrace(resume, pid, 0, 0);
  }
  FILE *out = fopen(report, "w");
  if (!out || fprintf(out, "%ld\n%s\n", seen, hit) < 0 || fclose(out)) fail(report);
  if (WIFSIGNALED(status)) {
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}
