"""A model server on loopback that says what a script tells it to, to whatever client asks.

It speaks Anthropic's messages, OpenAI's chat completions and Gemini's generateContent, streamed or not. `calls` are the
tool calls it makes, one an answer; the number of tool results in a request says which is next, so a request that is
repeated gets the same answer. After the last one it says `DONE`, and to requests that offer no tools (titles,
summaries, suggestions) `aside`. What it was asked is kept in `requests`.
"""

import http.server
import json
import threading

DONE = "SCRIPT-IS-DONE"


def strings(value):
    """All the text in a request, which is what a model gets to read."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        value = list(value.values())
    return "\n".join(strings(x) for x in value) if isinstance(value, list) else ""


class Model:
    def __init__(self):
        self.calls, self.requests, self.lock = [], [], threading.Lock()
        self.aside = DONE
        model = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                self.json({"data": [{"id": "scripted", "object": "model", "type": "model"}], "has_more": False})

            def do_HEAD(self):
                self.json({})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
                model.answer(self, self.path.partition("?")[0], body)

            def json(self, value, status=200):
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def events(self, events):
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                for name, data in events:
                    text = data if isinstance(data, str) else json.dumps(data)
                    self.wfile.write(((f"event: {name}\n" if name else "") + f"data: {text}\n\n").encode())
                self.close_connection = True

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def asked(self):
        """What reached the model with the user's question, in requests that let it use tools."""
        with self.lock:
            return "\n".join(strings(body) for body in self.requests if body.get("tools") and not results(body))

    def done(self):
        """The client has brought the result of the last call."""
        with self.lock:
            return any(body.get("tools") and results(body) >= len(self.calls) for body in self.requests)

    def answer(self, http_request, path, body):
        with self.lock:
            self.requests.append(body)
        at = results(body)
        call = self.calls[at] if body.get("tools") and at < len(self.calls) else None
        text = DONE if body.get("tools") else self.aside
        if path.endswith("/messages"):
            anthropic(http_request, body, call, text)
        elif path.endswith("/chat/completions"):
            openai(http_request, body, call, text)
        elif path.endswith((":generateContent", ":streamGenerateContent")):
            gemini(http_request, path, call, text)
        elif path.endswith(("/count_tokens", ":countTokens")):
            http_request.json({"input_tokens": 1, "totalTokens": 1})
        else:
            http_request.json({"error": {"message": f"no such thing: {path}"}}, 404)


def results(body):
    """How many tool results a conversation holds, in any of the three formats."""
    count = 0
    for message in body.get("messages", []):
        content = message.get("content")
        count += message.get("role") == "tool"
        count += sum(part.get("type") == "tool_result" for part in content if isinstance(part, dict)) \
            if isinstance(content, list) else 0
    for message in body.get("contents", []):
        count += sum("functionResponse" in part for part in message.get("parts", []))
    return count


def anthropic(to, body, call, text):
    block = {"type": "text", "text": text}
    if call:
        block = {"type": "tool_use", "id": f"toolu_{results(body):04}", "name": call[0], "input": call[1]}
    stop = "tool_use" if call else "end_turn"
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": body.get("model"), "content": [block],
               "stop_reason": stop, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    if not body.get("stream"):
        return to.json(message)
    empty = {**block, "input": {}} if call else {**block, "text": ""}
    delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])} if call else \
        {"type": "text_delta", "text": text}
    return to.events([
        ("message_start", {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}),
        ("content_block_start", {"type": "content_block_start", "index": 0, "content_block": empty}),
        ("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}),
        ("content_block_stop", {"type": "content_block_stop", "index": 0}),
        ("message_delta", {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None},
                           "usage": {"output_tokens": 1}}),
        ("message_stop", {"type": "message_stop"}),
    ])


def openai(to, body, call, text):
    says = {"role": "assistant", "content": text}
    if call:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        says = {"role": "assistant", "content": None,
                "tool_calls": [{"index": 0, "id": f"call_{results(body):04}", "type": "function", "function": function}]}
    end = "tool_calls" if call else "stop"
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    about = {"id": "chat-1", "created": 1, "model": body.get("model")}
    if not body.get("stream"):
        return to.json({**about, "object": "chat.completion", "usage": usage,
                        "choices": [{"index": 0, "message": says, "finish_reason": end}]})
    about["object"] = "chat.completion.chunk"
    return to.events([
        (None, {**about, "choices": [{"index": 0, "delta": says, "finish_reason": None}]}),
        (None, {**about, "choices": [{"index": 0, "delta": {}, "finish_reason": end}], "usage": usage}),
        (None, "[DONE]"),
    ])


def gemini(to, path, call, text):
    part = {"functionCall": {"name": call[0], "args": call[1]}} if call else {"text": text}
    answer = {"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
              "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}}
    if path.endswith(":generateContent"):
        return to.json(answer)
    return to.events([(None, answer)])
