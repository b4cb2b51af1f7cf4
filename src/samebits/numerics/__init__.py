"""Bits, orders of summation, their simulation and revelation, test data: needs numpy only, on any machine.

bits       raw-bit comparison, ulps, bfloat16 patterns        fma        one-rounding multiply-add
order      orders as data, digests                            picture    SVG and words
simulate   any order, bit for bit                             adder      matrix-unit adder in C++
probes     questions to a callable                            replay     an order against a callable, bit for bit
reveal     the order of any callable, with a verdict          recipes    named test data, equal everywhere
elementary exp, log and the like in fixed operations; Philox"""
