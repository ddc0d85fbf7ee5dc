"""The images of the boot benchmark: thirteen over the categories of HelloBench (Slacker, FAST '16), from Debian packages.

Each starts what it is for and prints READY when that serves; then it does a steady piece of work and prints DONE. Each runs as
one shell script without a network but its own loopback.
"""

# Waits until a port of the container's own loopback takes connections.
PORT = 'until (echo >/dev/tcp/127.0.0.1/{0}) 2>/dev/null; do sleep 0.02; done; echo READY'

# name: (category, packages, until ready, steady work)
IMAGES = {
    'debian': ('distro', '', 'echo READY', 'i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done; cat /usr/share/common-licenses/* >/dev/null'),
    'python': ('language', 'python3 python3-numpy python3-pandas python3-requests',
               'python3 -c "import json, numpy, requests; print(\'READY\')"',
               'python3 -c "import numpy as n; a = n.random.rand(700, 700); [a @ a for _ in range(20)]; sum(i * i for i in range(2000000))"'),
    'node': ('language', 'nodejs npm', 'node -e "require(\'http\'); console.log(\'READY\')"',
             'node -e "let s = 0; for (let i = 0; i < 2e8; i++) s += i % 7; require(\'zlib\').gzipSync(Buffer.alloc(3e7, s))"'),
    'perl': ('language', 'perl libwww-perl libdbi-perl', 'perl -MLWP::UserAgent -MDBI -e \'print "READY\\n"\'',
             'perl -e \'my %h; $h{$_ % 9973} += $_ for 1..4_000_000\''),
    'ruby': ('language', 'ruby ruby-sinatra', 'ruby -e "require \'json\'; require \'sinatra/base\'; puts :READY"',
             'ruby -e "(1..3_000_000).sum { |i| i % 7 }"'),
    'php': ('language', 'php-cli php-xml php-mbstring php-curl', 'php -r \'json_encode([1]); echo "READY\\n";\'',
            'php -r \'$s = 0; for ($i = 0; $i < 40000000; $i++) $s += $i % 7;\''),
    'java': ('language', 'openjdk-17-jdk-headless',
             'printf \'public class Hello { public static void main(String[] a) { System.out.println("READY"); } }\' >/tmp/Hello.java; java /tmp/Hello.java',
             'printf \'public class Work { public static void main(String[] a) { long s = 0; for (int i = 0; i < 600000000; i++) s += i %% 7; System.out.println(s); } }\' >/tmp/Work.java; java /tmp/Work.java'),
    'go': ('language', 'golang-go',
           'export HOME=/root GOFLAGS=-mod=mod GO111MODULE=off; printf \'package main\\nfunc main() { println("x") }\\n\' >/tmp/h.go; go version; go tool compile -V >/dev/null; echo READY',
           'gofmt -l /usr/lib/go-1.19/src/go >/dev/null'),
    'postgres': ('database', 'postgresql-15',
                 'su postgres -c "/usr/lib/postgresql/15/bin/postgres -D /etc/postgresql/15/main -c config_file=/etc/postgresql/15/main/postgresql.conf" >/tmp/log 2>&1 & until su postgres -c "psql -qAtc \'select 1\'" >/dev/null 2>&1; do sleep 0.05; done; echo READY',
                 'su postgres -c "psql -qc \'create table t as select i, md5(i::text) m from generate_series(1, 300000) i; create index on t (m); select count(*) from t where length(m) > i\'" >/dev/null'),
    'redis': ('database', 'redis-server redis-tools', 'redis-server --save "" >/dev/null & ' + PORT.format(6379),
              'redis-benchmark -q -n 60000 -t set,get >/dev/null'),
    'memcached': ('database', 'memcached', 'memcached -u nobody & ' + PORT.format(11211),
                  'exec 3<>/dev/tcp/127.0.0.1/11211; i=0; while [ $i -lt 5000 ]; do printf "set k$i 0 0 5\\r\\nvalue\\r\\n" >&3; read -r x <&3; i=$((i+1)); done'),
    'nginx': ('web server', 'nginx', 'nginx -g "daemon off;" & ' + PORT.format(80),
              'i=0; while [ $i -lt 400 ]; do exec 3<>/dev/tcp/127.0.0.1/80; printf "GET / HTTP/1.0\\r\\n\\r\\n" >&3; cat <&3 >/dev/null; i=$((i+1)); done'),
    'apache': ('web server', 'apache2', 'apache2ctl -D FOREGROUND >/tmp/log 2>&1 & ' + PORT.format(80),
               'i=0; while [ $i -lt 400 ]; do exec 3<>/dev/tcp/127.0.0.1/80; printf "GET / HTTP/1.0\\r\\n\\r\\n" >&3; cat <&3 >/dev/null; i=$((i+1)); done'),
}


def script(ready, work):
    return f'#!/bin/bash\n{ready}\n{work}\necho DONE\nkill $(jobs -p) 2>/dev/null\nexit 0\n'
