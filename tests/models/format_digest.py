# SPDX-License-Identifier: BSD-3-Clause
"""The digests of records, for format-reader.py.

The keyed hash is computed from its definitions (NIST SP 800-38D, RFC 8439):
only AES and SHA-256 come from libraries.
"""

import ctypes
import hashlib
import hmac

from format_database import need, u32

HASHES = {1: "sha256", 2: "sha512_256", 3: "blake2b", 4: "blake2s"}
GMAC = 6


def aes256(key, block):
    crypto = ctypes.CDLL("libcrypto.so.3")
    for name in ("EVP_CIPHER_CTX_new", "EVP_aes_256_ecb"):
        getattr(crypto, name).restype = ctypes.c_void_p
    ctx = ctypes.c_void_p(crypto.EVP_CIPHER_CTX_new())
    out, n = ctypes.create_string_buffer(64), ctypes.c_int()
    ok = crypto.EVP_EncryptInit_ex(
        ctx, ctypes.c_void_p(crypto.EVP_aes_256_ecb()), None, key, None) and \
        crypto.EVP_EncryptUpdate(ctx, out, ctypes.byref(n), block, 16)
    crypto.EVP_CIPHER_CTX_free(ctx)
    need(ok and n.value == 16, "libcrypto has no AES-256")
    return out.raw[:16]


def pad16(data):
    return data + bytes(-len(data) % 16)


class Gmac:
    """GCM without plaintext.  The bits of a block are reflected: the highest
    bit of the integer is the coefficient of x^0.
    """

    def __init__(self, key):
        nonce = bytes(12)
        h = int.from_bytes(aes256(key, bytes(16)), "big")
        self.mask = aes256(key, nonce + b"\0\0\0\1")
        # tables[i][b]: the product of h and byte b at position i.
        self.tables = []
        for _ in range(16):
            table = [0] * 256
            for bit in range(8):
                table[128 >> bit] = h
                h = h >> 1 ^ (0xe1 << 120 if h & 1 else 0)
            for b in range(256):
                table[b] = table[b & -b] ^ table[b & b - 1]
            self.tables.append(table)

    def tag(self, data):
        blocks = pad16(data) + (8 * len(data)).to_bytes(8, "big") + bytes(8)
        y = 0
        for i in range(0, len(blocks), 16):
            y ^= int.from_bytes(blocks[i:i + 16], "big")
            product = 0
            for table, b in zip(self.tables, y.to_bytes(16, "big")):
                product ^= table[b]
            y = product
        return bytes(a ^ b for a, b in zip(y.to_bytes(16, "big"), self.mask))


def poly1305(key, data):
    r = int.from_bytes(key[:16], "little") & \
        0x0ffffffc0ffffffc0ffffffc0fffffff
    total, p = 0, 2 ** 130 - 5
    for i in range(0, len(data), 16):
        piece = int.from_bytes(data[i:i + 16] + b"\1", "little")
        total = (total + piece) * r % p
    total += int.from_bytes(key[16:], "little")
    return (total % 2 ** 128).to_bytes(16, "little")


class Digest:
    """'key': from pool.db, or None; 'header': the header of records."""

    def __init__(self, number, features, key, header):
        need(number in HASHES or number == GMAC, "pool.db: hash", number,
             "is not known to this reader")
        keyed = number == GMAC
        need(keyed == bool(features & 2), "pool.db: feature hash key")
        need(keyed or key is None, "pool.db: a key without a keyed hash")
        need(u32(header, 72) == (number if keyed else 0) and
             u32(header, 76) == 0, "records: number of the hash")
        self.number = number
        if not keyed:
            need(not any(header[80:112]), "records: a key without a hash")
            return
        need(key is not None and len(key) == 64 and
             bytes.fromhex(key) == header[80:112],
             "pool.db and records: the key of the hash")

        def subkey(label):
            return hmac.new(bytes.fromhex(key), label, "sha256").digest()
        self.gmac = Gmac(subkey(b"gmac"))
        self.poly1305_key = subkey(b"poly1305")
        self.prefix = subkey(b"digest")[:16]

    def __call__(self, data):
        if self.number == GMAC:
            return hashlib.sha256(
                self.prefix + self.gmac.tag(data) +
                poly1305(self.poly1305_key, data)).digest()
        return hashlib.new(HASHES[self.number], data).digest()[:32]
