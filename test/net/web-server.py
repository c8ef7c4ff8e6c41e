# Runs in a guest: HTTP/1.1 with keep-alive, and WebSockets (RFC 6455) that echo text.
import base64, hashlib, http.server, socketserver, struct, sys

GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
requests = 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *args):
        pass

    def do_GET(self):
        global requests
        if self.headers.get('Upgrade', '').lower() == 'websocket':
            return self.websocket()
        requests += 1
        body = f'GET {self.path} {requests}'.encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.send_header('X-Socket', str(self.client_address[1]))
        self.end_headers()
        self.wfile.write(body)

    def websocket(self):
        key = hashlib.sha1((self.headers['Sec-WebSocket-Key'] + GUID).encode()).digest()
        self.send_response(101)
        self.send_header('Upgrade', 'websocket')
        self.send_header('Connection', 'Upgrade')
        self.send_header('Sec-WebSocket-Accept', base64.b64encode(key).decode())
        self.end_headers()
        self.close_connection = True
        while head := self.rfile.read(2):
            opcode, length = head[0] & 15, head[1] & 127
            if length == 126:
                (length,) = struct.unpack('>H', self.rfile.read(2))
            mask = self.rfile.read(4)
            payload = bytes(byte ^ mask[i & 3] for i, byte in enumerate(self.rfile.read(length)))
            size = bytes([length]) if length < 126 else bytes([126]) + struct.pack('>H', length)
            self.wfile.write(bytes([0x80 | opcode]) + size + payload)
            if opcode == 8:
                return


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


server = Server(('', int(sys.argv[1])), Handler)
print('SERVING', flush=True)
server.serve_forever()
