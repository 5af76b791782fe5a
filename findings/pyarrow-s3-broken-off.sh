#!/usr/bin/env bash
# pyarrow: a file that breaks off while it is written to S3 is published, cut
#
# Software: pyarrow 26.0.1 (PyPI), S3FileSystem, against moto 5.2.5
# Guess:    An exception in the block that writes leaves nothing under the name.
# Seen:     The end of the block closes the stream, which completes the upload: the object has the
#           bytes that were written so far. The stream has no way to give up. When the store refuses
#           a part, the upload stays, and pyarrow can neither list nor abort it.
# Matters:  A reader takes a cut file for a whole one, and a bucket keeps, and bills, parts of files
#           that nobody sees.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1 'moto[s3,server]==5.2.5'
AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test "$folder/venv/bin/python" - <<'PYTHON'
import logging
import threading

import botocore.session
from moto.server import DomainDispatcherApplication, create_backend_app
from pyarrow import NativeFile
from pyarrow.fs import S3FileSystem
from werkzeug.serving import make_server

logging.getLogger("werkzeug").setLevel(logging.ERROR)
store = DomainDispatcherApplication(create_backend_app)
is_full = False


def answer(environ, start):
    if is_full and "partNumber" in environ["QUERY_STRING"]:
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start("507 Insufficient Storage", [("Content-Type", "application/xml")])
        return [b"<Error><Code>InsufficientStorage</Code><Message>full</Message></Error>"]
    return store(environ, start)


server = make_server("127.0.0.1", 0, answer, threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"127.0.0.1:{server.server_port}"
client = botocore.session.get_session().create_client(
    "s3", endpoint_url=f"http://{address}", region_name="us-east-1"
)
client.create_bucket(Bucket="archive")
files = S3FileSystem(endpoint_override=address, scheme="http", region="us-east-1")


def write(name):
    try:
        with files.open_output_stream(f"archive/{name}") as stream:
            stream.write(b"a half")
            if not is_full:
                raise RuntimeError("the other half cannot be made")
    except (RuntimeError, OSError) as exc:
        return type(exc).__name__


raised = [write("cut")]
is_full = True
raised.append(write("refused"))
seen = {
    "raised": raised,
    "objects": [(o["Key"], o["Size"]) for o in client.list_objects_v2(Bucket="archive")["Contents"]],
    "uploads": [u["Key"] for u in client.list_multipart_uploads(Bucket="archive")["Uploads"]],
    "of pyarrow": [n for n in dir(S3FileSystem) + dir(NativeFile) if "abort" in n or "multipart" in n],
}
print(seen)
assert seen == {
    "raised": ["RuntimeError", "OSError"],
    "objects": [("cut", 6)],
    "uploads": ["refused"],
    "of pyarrow": [],
}, seen
PYTHON
