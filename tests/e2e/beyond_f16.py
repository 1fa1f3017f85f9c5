#!/usr/bin/env python3
"""A copy of an f32 checkpoint whose first layer takes numbers a million times as large: beyond f16.

    tests/e2e/beyond_f16.py MODEL COPY
"""
import json
import pathlib
import shutil
import struct
import sys

source, copy = map(pathlib.Path, sys.argv[1:])
shutil.copytree(source, copy)
data = bytearray((source / "model.safetensors").read_bytes())
(header_bytes,) = struct.unpack_from("<Q", data)
norm = json.loads(data[8 : 8 + header_bytes])["model.layers.0.input_layernorm.weight"]
assert norm["dtype"] == "F32", norm
begin, end = norm["data_offsets"]
weights = struct.Struct(f"<{(end - begin) // 4}f")
at = 8 + header_bytes + begin
weights.pack_into(data, at, *(1e6 * x for x in weights.unpack_from(data, at)))
(copy / "model.safetensors").write_bytes(data)
