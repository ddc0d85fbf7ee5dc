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
//         power   SIGKILL before it; REPORT.synced/ gets what of DIR would outlast a power failure
// REPORT  a file that gets how many accesses there were, and which one was hit
//
// REPORT.synced/ has each file as it was when it was last synced (or when the program started, if it
// was there), called by its inode number and the time when that was given to it, and each folder, with
// the suffix .names, as a list of what was in it: a letter, that name, and the file's own.
//
// It ends as the program ends. The program's system calls are seen by seccomp and ptrace, so it does
// not matter which library makes them, and in which thread.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
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
#include <sys/sendfile.h>
#include <sys/stat.h>
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

// What REPORT.synced/ calls a file. A number alone may have belonged to a file that was deleted.
static int identity(int dir, const char *name, int flags, char *to, size_t size, struct statx *found) {
  if (statx(dir, name, flags, STATX_BASIC_STATS | STATX_BTIME, found)) return 0;
  return snprintf(to, size, "%llu-%lld-%u", (unsigned long long)found->stx_ino, (long long)found->stx_btime.tv_sec,
                  found->stx_btime.tv_nsec) > 0;
}

static char synced[4096]; // REPORT.synced, or empty

// Keeps a file or folder as it is now.
static int keep(const char *path, const struct stat *, int, struct FTW *) {
  char name[100], to[4300];
  struct statx found, child;
  if (!identity(AT_FDCWD, path, 0, name, sizeof name, &found)) fail(path);
  snprintf(to, sizeof to, "%s/%s%s", synced, name, S_ISDIR(found.stx_mode) ? ".names" : "");
  if (!S_ISDIR(found.stx_mode)) {
    int in = open(path, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (in < 0 || out < 0 || fchmod(out, found.stx_mode & 07777)) fail(path);
    while (sendfile(out, in, 0, 1 << 30) > 0) continue;
    close(in);
    close(out);
    return 0;
  }
  DIR *dir = opendir(path);
  FILE *out = fopen(to, "w");
  if (!dir || !out) fail(path);
  for (struct dirent *entry; (entry = readdir(dir));) {
    int is_own = !strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..");
    if (is_own || !identity(dirfd(dir), entry->d_name, AT_SYMLINK_NOFOLLOW, name, sizeof name, &child)) continue;
    fprintf(out, "%c %s %s\n", S_ISDIR(child.stx_mode) ? 'd' : 'f', name, entry->d_name);
  }
  closedir(dir);
  fclose(out);
  return 0;
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
  if (!strcmp(mode, "power")) {
    snprintf(synced, sizeof synced, "%s.synced", report);
    if (mkdir(synced, 0700) || nftw(dir, keep, 16, FTW_PHYS)) fail(synced);
  }
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
    int is_there = is_read == wants_reads && path_of(pid, call, &regs, path, sizeof path) &&
                   !strncmp(path, dir, strlen(dir));
    int is_ours = is_there && path[strlen(dir)] == '/';
    int is_synced = *synced && (is_ours || (is_there && !path[strlen(dir)])) &&
                    (call->number == SYS_fsync || call->number == SYS_fdatasync);
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
      } else if (!strcmp(mode, "kill") || *synced) {
        kill(child, SIGKILL);
      } else {
        if (strcmp(mode, "done") && is_data && regs.rdx > 1) regs.rdx /= 2;
        if (strcmp(mode, "short")) resume = PTRACE_SYSCALL;
      }
      ptrace(PTRACE_SETREGS, pid, 0, &regs);
    } else if (is_synced) {
      snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, (int)regs.rdi);
      keep(path, 0, 0, 0);
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
