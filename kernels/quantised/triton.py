# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false, reportGeneralTypeIssues=false
# Types of kernels are those of the language that Triton compiles.
"""Writing pages of one byte a number, and attention that reads them as they are.

Codes become the type of the queries in registers, which is exact. The scales of keys multiply logits, those of values
the weights, and q . mean is added to a page's logits in fp32: no key is rebuilt.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _to_e4m3(x):
    """The nearest number of three mantissa bits, ties to even; below 2^-6 the nearest multiple of 2^-9.

    So the cast that follows is exact, and does not depend on how a device or the interpreter rounds.
    """
    power = (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)  # of two, at most |x|
    shift = tl.maximum(power, 0.015625) * 1572864.0  # its last bit has the weight of x's third mantissa bit
    y = (x + shift) - shift
    return tl.where(y == 0.0, x * 0.0, y)  # of the sign of x, as torch rounds


@triton.jit
def quantise_kernel(
    x_pointer, codes_pointer, scale_pointer, mean_pointer, tokens, width, heads, x_p, x_g, x_n,
    MOST: tl.constexpr, WHOLE: tl.constexpr, SMOOTH: tl.constexpr, T: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Grid (rows * heads, pages); tokens: of a page. The results are contiguous."""
    both, page = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    place = both * tl.num_programs(1) + page
    x_pointer += both // heads * x_p + both % heads * x_g + page * tokens * x_n
    column = tl.arange(0, D)
    mean = tl.zeros([D], tl.float32)
    if SMOOTH:
        for start in range(0, tokens, T):
            token = start + tl.arange(0, T)
            inside = (token < tokens)[:, None] & (column < width)[None, :]
            x = tl.load(x_pointer + token[:, None] * x_n + column[None, :], mask=inside, other=0.0).to(tl.float32)
            mean += tl.sum(x, 0)
        mean = mean / tokens
        tl.store(mean_pointer + place * width + column, mean, mask=column < width)
    for start in range(0, tokens, T):
        token = start + tl.arange(0, T)
        inside = (token < tokens)[:, None] & (column < width)[None, :]
        x = tl.load(x_pointer + token[:, None] * x_n + column[None, :], mask=inside, other=0.0).to(tl.float32)
        y = tl.where(inside, x - mean[None, :], 0.0)
        scale = tl.div_rn(tl.max(tl.abs(y), 1), MOST)
        code = tl.where(scale[:, None] > 0, tl.div_rn(y, tl.where(scale > 0, scale, 1.0)[:, None]), 0.0)
        code = tl.minimum(tl.maximum(code, -MOST), MOST)
        code = tl.floor(code + 0.5) if WHOLE else _to_e4m3(code)
        made = place * tokens + token
        tl.store(scale_pointer + made, scale, mask=token < tokens)
        to = codes_pointer + made[:, None] * width + column[None, :]
        tl.store(to, code.to(codes_pointer.dtype.element_ty), mask=inside)


@triton.jit
def attend_kernel(
    q_pointer, k_pointer, v_pointer, k_scale_pointer, v_scale_pointer, mean_pointer, valid_pointer,
    out_pointer, lse_pointer,
    heads, group, rows, queries, pages, tokens, scale, q_b, q_h, q_n,
    MASKED: tl.constexpr, SMOOTH: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of queries, B * h). Codes, scales and means are contiguous; out is, as [B, h, Q, D]."""
    b, h = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    p, g, key_heads = b % rows, h // group, heads // group
    i, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    here = (i < queries)[:, None]
    q = tl.load(q_pointer + b * q_b + h * q_h + i[:, None] * q_n + d[None, :], mask=here, other=0.0)
    top = tl.full([BM], float("-inf"), tl.float32)
    total, acc = tl.zeros([BM], tl.float32), tl.zeros([BM, D], tl.float32)
    first = (p * key_heads + g) * pages
    for page in range(pages):
        there = True
        if MASKED:
            there = tl.load(valid_pointer + p * pages + page) != 0
        if there:
            added = tl.zeros([BM], tl.float32)
            if SMOOTH:
                mean = tl.load(mean_pointer + (first + page) * D + d)
                added = tl.sum(q.to(tl.float32) * mean[None, :], 1)
            for start in range(0, tokens, BN):
                j = start + tl.arange(0, BN)
                inside = j < tokens
                place = (first + page) * tokens + j
                k = tl.load(k_pointer + place[None, :] * D + d[:, None], mask=inside[None, :], other=0.0).to(q.dtype)
                k_scale = tl.load(k_scale_pointer + place, mask=inside, other=0.0)
                logit = tl.dot(q, k, input_precision="ieee") * k_scale[None, :] + added[:, None]
                logit = tl.where(inside[None, :], logit * (scale * LOG2E), float("-inf"))
                new = tl.maximum(top, tl.max(logit, 1))
                weight, shrink = tl.exp2(logit - new[:, None]), tl.exp2(top - new)
                total = total * shrink + tl.sum(weight, 1)
                v = tl.load(v_pointer + place[:, None] * D + d[None, :], mask=inside[:, None], other=0.0).to(q.dtype)
                weight *= tl.load(v_scale_pointer + place, mask=inside, other=0.0)[None, :]
                acc = acc * shrink[:, None] + tl.dot(weight.to(q.dtype), v, input_precision="ieee")
                top = new
    made = tl.program_id(1).to(tl.int64) * queries + i
    total = tl.where(total > 0, total, 1.0)
    out = acc / total[:, None]
    tl.store(out_pointer + made[:, None] * D + d[None, :], out, mask=here)
    tl.store(lse_pointer + made, top + tl.log2(total), mask=i < queries)


def page_tile(width: int) -> tuple[int, int, int]:
    """T, D and warps of `quantise_kernel`."""
    d = triton.next_power_of_2(width)
    t = max(1, min(64, 8192 // d))
    return t, d, max(1, min(8, t * d // 1024))


def tiles(width: int, itemsize: int) -> tuple[int, int, int]:
    """BM, BN and warps of `attend_kernel`. itemsize: bytes of a query's number."""
    return (32, 32, 4) if itemsize > 2 else (64, 32, 4 if width <= 64 else 8)


def quantise(x: Tensor, page: int, fp8: bool, smooth: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales and means (none without smoothing) as of the reference."""
    rows, heads, count, width = x.shape
    codes = torch.empty(x.shape, dtype=torch.float8_e4m3fn if fp8 else torch.int8, device=x.device)
    scale = torch.empty(x.shape[:3], dtype=torch.float32, device=x.device)
    pages = count // page
    mean = torch.empty(rows, heads, pages if smooth else 0, width, dtype=torch.float32, device=x.device)
    if x.numel():
        t, d, warps = page_tile(width)
        quantise_kernel[(rows * heads, pages)](
            x, codes, scale, mean, page, width, heads, *x.stride()[:3],
            MOST=448.0 if fp8 else 127.0, WHOLE=not fp8, SMOOTH=smooth, T=t, D=d, num_warps=warps,
        )  # fmt: skip
    return codes, scale, mean


def attend(
    q: Tensor, k: Tensor, k_scale: Tensor, mean: Tensor | None, v: Tensor, v_scale: Tensor, valid: Tensor | None,
    page: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Result [B, h, Q, D] and log-sum-exp [B, h, Q] in bits."""
    batch, heads, queries, width = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if q.numel():
        bm, bn, warps = tiles(width, q.element_size())
        attend_kernel[(triton.cdiv(queries, bm), batch * heads)](
            q, k, v, k_scale, v_scale, q if mean is None else mean, q if valid is None else valid, out, lse,
            heads, heads // k.shape[1], k.shape[0], queries, k.shape[2] // page, page, scale, *q.stride()[:3],
            MASKED=valid is not None, SMOOTH=mean is not None, D=width, BM=bm, BN=bn, num_warps=warps, num_stages=2,
        )  # fmt: skip
    return out, lse
