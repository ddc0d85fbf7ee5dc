#!/usr/bin/env python3
"""A proxy for tests: SOCKS 5 with the user u and the password p; HTTP, also within TLS with CERT and KEY; or a server
that takes TLS off what goes to PORT. proxy.py socks | http | https CERT KEY | relay CERT KEY PORT. It prints its port,
and then a line for each host that it was asked for."""
import asyncio, base64, ssl, sys


async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def tunnel(reader, writer, host, port, yes):
    print(host, flush=True)
    # All names are of this machine.
    there, back = await asyncio.open_connection("127.0.0.1", port)
    writer.write(yes)
    await asyncio.gather(pump(reader, back), pump(there, writer))


async def socks(reader, writer):
    """RFC 1928, with the login of RFC 1929."""
    version, count = await reader.readexactly(2)
    assert version == 5 and 2 in await reader.readexactly(count)
    writer.write(b"\5\2")
    _, length = await reader.readexactly(2)
    user = await reader.readexactly(length)
    password = await reader.readexactly((await reader.readexactly(1))[0])
    right = (user, password) == (b"u", b"p")
    writer.write(b"\1" + (b"\0" if right else b"\1"))
    if not right:
        return writer.close()
    _, command, _, kind = await reader.readexactly(4)
    assert command == 1
    if kind == 3:
        host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
    else:
        host = "address " + ".".join(map(str, await reader.readexactly(4 if kind == 1 else 16)))
    port = int.from_bytes(await reader.readexactly(2))
    await tunnel(reader, writer, host, port, b"\5\0\0\1\0\0\0\0\0\0")


async def http(reader, writer):
    """CONNECT (RFC 9110 section 9.3.6), and requests that are forwarded as they are."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    method, target, _ = head.split("\r\n")[0].split(" ")
    if "authorization: basic " + base64.b64encode(b"u:p").decode().lower() not in head.lower():
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        return writer.close()
    if method != "CONNECT":
        _, _, authority, path = target.split("/", 3)
        host, port = authority.rsplit(":", 1)
        print(host, flush=True)
        there, back = await asyncio.open_connection("127.0.0.1", int(port))
        rest = head.split("\r\n", 1)[1]
        back.write(f"{method} /{path} HTTP/1.1\r\nConnection: close\r\n{rest}".encode())
        return await asyncio.gather(pump(reader, back), pump(there, writer))
    host, port = target.rsplit(":", 1)
    await tunnel(reader, writer, host, int(port), b"HTTP/1.1 200 OK\r\n\r\n")


https = http


async def relay(reader, writer):
    there, back = await asyncio.open_connection("127.0.0.1", int(sys.argv[4]))
    await asyncio.gather(pump(reader, back), pump(there, writer))


async def main():
    tls = None
    if sys.argv[1] in ("https", "relay"):
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(*sys.argv[2:4])
    server = await asyncio.start_server(globals()[sys.argv[1]], "127.0.0.1", 0, ssl=tls)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
