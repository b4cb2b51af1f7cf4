// Prints one digest a kernel of a built library: `digests <libsamebits.so> <instruction set> [operator]`, or with no
// instruction set those that can run here.
//
// Needs no Python, so that a library made for another architecture can be run under an emulator. Inputs come from a
// counter; all results are finite numbers or NaNs whose bits are declared, so that digests of two builds must be equal.
#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int32_t THREADS = 2;
constexpr int32_t FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2;
const char* const FORMAT_NAMES[] = {"float32", "bfloat16", "float16"};

void* library = nullptr;
std::string instruction_set;

template <class Function>
Function* kernel(const char* name) {
    const std::string symbol = "samebits_" + std::string(name) + "_" + instruction_set;
    void* found = dlsym(library, symbol.c_str());
    if (found == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        std::exit(2);
    }
    return reinterpret_cast<Function*>(found);
}

// Arguments travel as declared in the kernel: pointers, int32_t, int64_t and float are told apart by their C++ types.
template <class... Arguments>
void call(const char* name, Arguments... arguments) {
    const int32_t status = kernel<int32_t(Arguments..., int32_t)>(name)(arguments..., THREADS);
    if (status == 0) return;
    const auto last_error = reinterpret_cast<const char* (*)()>(dlsym(library, "samebits_last_error"));
    std::fprintf(stderr, "%s: status %d: %s\n", name, status, last_error());
    std::exit(2);
}

// splitmix64 of a counter: number `index` of stream `stream`.
uint64_t counted(uint64_t stream, uint64_t index) {
    uint64_t x = (stream << 32 ^ index) * 0x9e3779b97f4a7c15u + 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

using Bytes = std::vector<unsigned char>;

int64_t size_of(int32_t format) { return format == FLOAT32 ? 4 : 2; }

// Numbers in (-limit, limit), multiples of 2^-7 times a power of two: exact in all three formats.
Bytes numbers(int32_t format, int64_t count, uint64_t stream, float limit = 2.0f) {
    Bytes bytes(static_cast<size_t>(count * size_of(format)));
    for (int64_t i = 0; i < count; ++i) {
        const uint64_t word = counted(stream, static_cast<uint64_t>(i));
        const float value = std::ldexp(static_cast<float>(static_cast<int64_t>(word >> 56) - 128) * limit,
                                       -7 - static_cast<int>(word % 5));
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        if (format == FLOAT32) {
            bits += bits << 1 == 0 ? 0u : static_cast<uint32_t>(word >> 32 & 0xfff);  // float32 has more bits to fill
            std::memcpy(&bytes[static_cast<size_t>(4 * i)], &bits, 4);
            continue;
        }
        const uint32_t exponent = bits >> 23 & 255, half = bits >> 16 & 0x8000u;
        const uint32_t pattern = format == BFLOAT16 ? bits >> 16
                                 : exponent == 0    ? half
                                                    : half | (exponent - 112) << 10 | (bits >> 13 & 0x3ffu);
        const uint16_t stored = static_cast<uint16_t>(pattern);
        std::memcpy(&bytes[static_cast<size_t>(2 * i)], &stored, 2);
    }
    return bytes;
}

std::vector<int64_t> integers(int64_t count, int64_t below, uint64_t stream) {
    std::vector<int64_t> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(counted(stream, i) % static_cast<uint64_t>(below));
    return values;
}

std::vector<uint32_t> patterns(int64_t count, uint64_t stream) {
    std::vector<uint32_t> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint32_t>(counted(stream, i) >> 32);
    return values;
}

// FNV-1a over everything that is added, in order.
struct Digest {
    std::string name;
    uint64_t value = 0xcbf29ce484222325u;
    template <class T>
    Digest& add(const std::vector<T>& data) {
        const unsigned char* bytes = reinterpret_cast<const unsigned char*>(data.data());
        for (size_t i = 0; i < data.size() * sizeof(T); ++i) value = (value ^ bytes[i]) * 0x100000001b3u;
        return *this;
    }
    void print() const { std::printf("%-34s %016llx\n", name.c_str(), static_cast<unsigned long long>(value)); }
};
Digest digest(const char* kernel_name, int32_t format) { return {std::string(kernel_name) + " " + FORMAT_NAMES[format]}; }

const void* pointer(const Bytes& bytes) { return bytes.data(); }
Bytes space(int32_t format, int64_t count) { return Bytes(static_cast<size_t>(count * size_of(format))); }

void elementary() {
    const char* const names[] = {"exp", "exp2", "log", "rsqrt", "sin", "cos", "tanh", "erf", "sigmoid"};
    const auto words = patterns(50'003, 1);
    std::vector<float> in(words.size()), out(words.size());
    std::memcpy(in.data(), words.data(), 4 * words.size());
    for (size_t i = 0; i < in.size(); i += 2) in[i] = std::ldexp(static_cast<float>(words[i] >> 8), -17) - 64.0f;
    for (int32_t function = 0; function < 9; ++function) {
        call("elementary", function, static_cast<const float*>(in.data()), out.data(), static_cast<int64_t>(in.size()));
        Digest{std::string("elementary ") + names[function]}.add(out).print();
        if (function > 1 && function != 7) continue;
        int64_t differing = -1;
        const int32_t quick = function == 7 ? 2 : function;
        for (const uint32_t first : {0x42800000u, 0xc2800000u, 0x3f000000u, 0x7f7fff00u, 0u})
            call("elementary_quick_differs", quick, first, int64_t{4096}, &differing),
                differing == 0 ? void() : (std::fprintf(stderr, "quick %s differs\n", names[function]), std::exit(2));
    }
    std::vector<uint32_t> random(10'001);
    call("philox", uint64_t{0x123456789abcdef0u}, uint32_t{7}, random.data(), static_cast<int64_t>(random.size()));
    Digest{"philox"}.add(random).print();
}

void conversions() {
    std::vector<uint16_t> halves(1 << 16);
    for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
    auto words = patterns(200'003, 2);
    for (size_t i = 0; i < words.size(); i += 3) words[i] = (words[i] & 0x807fffffu) | (words[i] % 48 + 96) << 23;
    for (size_t i = 1; i < words.size(); i += 30) words[i] |= 0x7f800000u;
    for (const int32_t format : {BFLOAT16, FLOAT16}) {
        Digest wide = digest("widen", format), narrow = digest("narrow", format);
        for (const int32_t by_vectors : {0, 1}) {
            std::vector<uint32_t> widened(halves.size());
            std::vector<uint16_t> narrowed(words.size());
            call("convert", format, FLOAT32, by_vectors, static_cast<const void*>(halves.data()),
                 static_cast<void*>(widened.data()), static_cast<int64_t>(halves.size()));
            call("convert", FLOAT32, format, by_vectors, static_cast<const void*>(words.data()),
                 static_cast<void*>(narrowed.data()), static_cast<int64_t>(words.size()));
            wide.add(widened), narrow.add(narrowed);
        }
        wide.print(), narrow.print();
    }
}

void adder() {
    const int64_t m = 5, k = 100, n = 70;
    for (const int32_t format : {BFLOAT16, FLOAT16, int32_t{3}}) {
        // Any finite patterns below 2 in size: exponents far apart, so that alignment cuts terms off.
        const auto drawn = [&](int64_t count, uint64_t stream) {
            auto words = patterns(count, stream);
            for (uint32_t& word : words) word &= 0xbfffbfffu;
            Bytes bytes(4 * words.size());
            std::memcpy(bytes.data(), words.data(), bytes.size());
            return bytes;
        };
        const Bytes a = drawn(m * k, 3), b = drawn(k * n, 4);
        std::vector<float> out(static_cast<size_t>(m * n), 0.25f);
        const int32_t width = format == 3 ? 8 : 16;
        call("fused_chain", pointer(a), pointer(b), out.data(), m, k, n, format, width, int32_t{25}, int32_t{24}, int32_t{0},
             int32_t{0}, int32_t{-133}, int32_t{1});
        Digest{std::string("fused_chain ") + (format == 3 ? "tfloat32" : FORMAT_NAMES[format])}.add(out).print();
    }
}

// Every layout of B, one row and many, edges of tiles, a bias, a resumed chain.
void matmul(int32_t format) {
    Digest all = digest("matmul", format);
    const int64_t sizes[][3] = {{1, 67, 133}, {1, 16, 4096}, {3, 5, 7}, {14, 32, 64}, {33, 101, 530}, {65, 24, 40}, {400, 9, 30}};
    for (const auto& [m, n, k] : sizes) {
        const Bytes a = numbers(format, m * k, 5), b = numbers(format, k * n, 6), bias = numbers(format, n, 7);
        const int64_t strides[][2] = {{n, 1}, {1, k}};
        for (const auto& [row, column] : strides) {
            Bytes out = space(format, m * n);
            std::vector<float> accumulator(static_cast<size_t>(m * n), 0.5f);
            call("matmul", format, format, m, n, k, pointer(a), k, int64_t{1}, pointer(b), row, column, pointer(bias),
                 static_cast<float*>(nullptr), static_cast<void*>(out.data()));
            call("matmul", format, format, m, n, k, pointer(a), k, int64_t{1}, pointer(b), row, column,
                 static_cast<const void*>(nullptr), accumulator.data(), static_cast<void*>(nullptr));
            all.add(out).add(accumulator);
        }
    }
    all.print();
}

// `more` keys before those of the last two sequences, one of which has a single query.
void attention(int32_t format, bool causal, int64_t window, float softcap, int64_t more = 0) {
    const int64_t heads = 4, key_heads = 2, head = 40, q_length[] = {75, 1, 130}, k_length[] = {75, 90 + more, 140 + more};
    const int64_t q_start[] = {0, 75, 76}, k_start[] = {0, 75, 165 + more}, tokens = 206, keys = 305 + 2 * more;
    struct {
        int64_t format, tokens, sequences, heads, key_heads, head, pages_row, page_size, causal, window, strides[8];
    } const numbers_of{format, tokens, 3, heads, key_heads, head, 0, 0, causal, window,
                       {heads * head, head, key_heads * head, head, key_heads * head, head, heads * head, head}};
    const float scale = 0.158113883f, log2_e = 0x1.715476p+0f;
    const float factors[] = {softcap, softcap == 0.0f ? 0.0f : scale / softcap, softcap,
                             softcap == 0.0f ? scale * log2_e : log2_e, scale};
    const void* const tables[] = {q_start, q_length, k_start, k_length, nullptr};
    const Bytes q = numbers(format, tokens * heads * head, 8), k = numbers(format, keys * key_heads * head, 9);
    const Bytes v = numbers(format, keys * key_heads * head, 10), dout = numbers(format, tokens * heads * head, 11);
    Bytes out = space(format, tokens * heads * head), dq = out, dk = space(format, keys * key_heads * head), dv = dk;
    std::vector<float> lse2(static_cast<size_t>(tokens * heads)), delta = lse2;
    const void *first = &numbers_of, *second = factors, *third = tables;
    call("attention_forward", first, second, third, pointer(q), pointer(k), pointer(v), static_cast<void*>(out.data()),
         lse2.data());
    call("attention_backward", first, second, third, pointer(dout), pointer(q), pointer(k), pointer(v),
         pointer(out), static_cast<const float*>(lse2.data()), delta.data(), static_cast<void*>(dq.data()),
         static_cast<void*>(dk.data()), static_cast<void*>(dv.data()));
    const std::string rule = softcap != 0.0f ? " capped" : window != 0 ? " window" : causal ? " causal" : " full";
    const std::string kind = rule + (more != 0 ? " splits" : "");
    digest(("attention" + kind).c_str(), format).add(out).add(lse2).print();
    digest(("attention backward" + kind).c_str(), format).add(dq).add(dk).add(dv).print();
}

void attentions(int32_t format) {
    attention(format, true, 0, 0.0f);
    attention(format, false, 0, 0.0f);
    attention(format, true, 20, 0.0f);
    attention(format, true, 0, 5.0f);
    attention(format, true, 0, 0.0f, 4000);
}

void rmsnorm(int32_t format) {
    const int64_t rows = 13, width = 777;
    const Bytes x = numbers(format, rows * width, 12), weight = numbers(format, width, 13), more = numbers(format, rows * width, 14);
    Bytes y = space(format, rows * width), hidden = y, dx = y;
    std::vector<float> rstd(static_cast<size_t>(rows)), dweight(static_cast<size_t>(width), 0.125f);
    call("rmsnorm_forward", format, rows, width, pointer(x), pointer(weight), pointer(more), 1e-6f,
         static_cast<void*>(y.data()), rstd.data(), static_cast<void*>(hidden.data()));
    call("rmsnorm_backward_input", format, rows, width, pointer(more), pointer(hidden), pointer(weight),
         static_cast<const float*>(rstd.data()), pointer(x), static_cast<void*>(dx.data()));
    call("rmsnorm_backward_weight", format, rows, width, pointer(more), pointer(hidden),
         static_cast<const float*>(rstd.data()), dweight.data());
    digest("rmsnorm", format).add(y).add(rstd).add(hidden).add(dx).add(dweight).print();
}

void softmax(int32_t format) {
    const int64_t rows = 9, width = 1001;
    const Bytes x = numbers(format, rows * width, 15, 16.0f), dy = numbers(format, rows * width, 16);
    for (const int32_t logarithm : {0, 1}) {
        Bytes y = space(format, rows * width), dx = y;
        call("softmax_forward", format, format, logarithm, rows, width, pointer(x), static_cast<void*>(y.data()));
        call("softmax_backward", format, format, logarithm, rows, width, pointer(dy), pointer(y), static_cast<void*>(dx.data()));
        digest(logarithm ? "log_softmax" : "softmax", format).add(y).add(dx).print();
    }
}

void elements(int32_t format) {
    const int64_t count = 9'999;
    const Bytes a = numbers(format, count, 17, 8.0f), b = numbers(format, count, 18), dy = numbers(format, count, 19);
    Bytes y = space(format, count), da = y, db = y;
    void *to = y.data(), *to_a = da.data(), *to_b = db.data();
    call("swiglu_forward", format, count, pointer(a), pointer(b), to);
    call("swiglu_backward", format, count, pointer(dy), pointer(a), pointer(b), to_a, to_b);
    digest("swiglu", format).add(y).add(da).add(db).print();
    for (const int32_t by_tanh : {0, 1}) {
        call("gelu_forward", format, by_tanh, count, pointer(a), to);
        call("gelu_backward", format, by_tanh, count, pointer(dy), pointer(a), to_a);
        digest(by_tanh ? "gelu tanh" : "gelu", format).add(y).add(da).print();
    }
}

void rope(int32_t format) {
    const int64_t tokens = 11, heads = 3, size = 20;
    const auto positions = integers(tokens, 100'000, 20);
    const Bytes x = numbers(format, tokens * heads * size, 21);
    std::vector<float> frequencies(static_cast<size_t>(size / 2));
    for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = 1.0f / static_cast<float>(int64_t{1} << 2 * i);
    Digest all = digest("rope", format);
    for (const int32_t interleaved : {0, 1})
        for (const int32_t opposite : {0, 1}) {
            Bytes y = space(format, tokens * heads * size);
            call("rope_rotate", format, tokens, heads, size, pointer(x), positions.data(),
                 static_cast<const float*>(frequencies.data()), 1.25f, interleaved, opposite, static_cast<void*>(y.data()));
            all.add(y);
        }
    all.print();
}

void embedding(int32_t format) {
    const int64_t rows = 200, width = 70, vocabulary = 31;
    const auto ids = integers(rows, vocabulary, 22);
    const Bytes dy = numbers(format, rows * width, 23);
    std::vector<float> sums(static_cast<size_t>(vocabulary * width), 0.0f);
    call("embedding_accumulate", format, rows, width, int64_t{5}, ids.data(), pointer(dy), sums.data());
    digest("embedding backward", format).add(sums).print();
}

void logprob(int32_t format) {
    const int64_t rows = 17, vocabulary = 600, depth = 48;
    const auto ids = integers(rows, vocabulary, 24);
    const Bytes hidden = numbers(format, rows * depth, 25), weight = numbers(format, vocabulary * depth, 26);
    std::vector<float> parts(static_cast<size_t>(2 * rows * 3)), logprobs(static_cast<size_t>(rows)), lse = logprobs;
    const std::vector<float> upstream(static_cast<size_t>(rows), -0.375f);
    call("logprob_forward", format, rows, vocabulary, depth, pointer(hidden), pointer(weight), ids.data(), int64_t{-100},
         static_cast<float*>(nullptr), parts.data(), logprobs.data(), lse.data());
    Bytes dz = space(format, rows * vocabulary);
    call("logprob_gradient", format, rows, vocabulary, depth, pointer(hidden), pointer(weight), ids.data(), int64_t{-100},
         int64_t{0}, static_cast<const float*>(lse.data()), upstream.data(), static_cast<void*>(dz.data()), vocabulary);
    digest("logprob", format).add(logprobs).add(lse).add(dz).print();
}

void distill(int32_t format) {
    const int64_t rows = 7, vocabulary = 500;
    const auto targets = integers(rows, vocabulary, 27);
    const Bytes student = numbers(format, rows * vocabulary, 28, 8.0f), teacher = numbers(format, rows * vocabulary, 29, 8.0f);
    std::vector<float> loss(static_cast<size_t>(rows)), statistics(static_cast<size_t>(16 * rows), 0.0f);
    const std::vector<float> upstream(static_cast<size_t>(rows), 0.625f);
    Bytes dstudent = space(format, rows * vocabulary);
    call("distill_loss_forward", format, rows, vocabulary, pointer(student), pointer(teacher), targets.data(), int64_t{-100},
         0.5f, 2.0f, 0.5f, loss.data(), statistics.data());
    call("distill_loss_backward", format, rows, vocabulary, upstream.data(), pointer(student), pointer(teacher),
         targets.data(), int64_t{-100}, 0.5f, 1.0f, 0.5f, static_cast<const float*>(statistics.data()),
         static_cast<void*>(dstudent.data()));
    digest("distill_loss", format).add(loss).add(dstudent).print();
}

void sample(int32_t format) {
    const int64_t rows = 24, vocabulary = 1003;
    const Bytes logits = numbers(format, rows * vocabulary, 30, 8.0f);
    const auto requests = integers(rows, 1000, 31), positions = integers(rows, 1000, 32), top_k = integers(rows, 50, 33);
    std::vector<float> temperature(static_cast<size_t>(rows)), top_p(static_cast<size_t>(rows));
    for (size_t i = 0; i < temperature.size(); ++i) temperature[i] = 0.25f * static_cast<float>(i % 6), top_p[i] = i % 3 ? 0.75f : 1.0f;
    const auto seeds = integers(rows, 1000, 42);
    std::vector<int64_t> tokens(static_cast<size_t>(rows));
    call("sample", format, rows, vocabulary, pointer(logits), requests.data(), positions.data(),
         static_cast<const float*>(temperature.data()), top_k.data(), static_cast<const float*>(top_p.data()), seeds.data(),
         tokens.data());
    digest("sample", format).add(tokens).print();
}

void optimizer(int32_t format) {
    const int64_t count = 70'001;
    Bytes param = numbers(format, count, 34), grad = numbers(format, count, 35);
    Bytes first = numbers(FLOAT32, count, 36, 0.125f), master = numbers(FLOAT32, count, 37);
    std::vector<float> second(static_cast<size_t>(count), 0.01f);
    const auto address = [](auto& data) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(data.data())); };
    const int64_t entry[] = {count, format, format, address(param), address(grad), address(first), address(second),
                             format == FLOAT32 ? 0 : address(master)};
    call("adamw", int64_t{1}, static_cast<const void*>(entry), 0.99f, -1e-3f, 1.5f, 0.9f, 0.1f, 0.95f, 0.05f, 1e-8f);
    digest("adamw", format).add(param).add(first).add(second).add(master).print();
    const int64_t gradients[] = {count, format, address(grad)};
    std::vector<float> total(1);
    call("grad_square_sum", int64_t{1}, static_cast<const void*>(gradients), total.data());
    call("grad_norm_clip", int64_t{1}, static_cast<const void*>(gradients), 37.0f, 1.0f);
    digest("grad_norm", format).add(total).add(grad).print();
}

}  // namespace

int main(int count, char** words) {
    if (count < 2 || count > 4) return std::fprintf(stderr, "usage: digests <library> [instruction set [operator]]\n"), 2;
    library = dlopen(words[1], RTLD_NOW);
    if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 2;
    if (count == 2) {
        const auto sets = reinterpret_cast<const char* (*)()>(dlsym(library, "samebits_instruction_sets"));
        return std::puts(sets()), 0;
    }
    instruction_set = words[2];
    const auto wanted = [&](const char* name) { return count == 3 || std::strcmp(words[3], name) == 0; };
    if (wanted("elementary")) elementary();
    if (wanted("conversions")) conversions();
    if (wanted("adder")) adder();
    const struct {
        const char* name;
        void (*run)(int32_t format);
    } operators[] = {{"matmul", matmul},       {"attention", attentions}, {"rmsnorm", rmsnorm}, {"softmax", softmax},
                     {"elements", elements},   {"rope", rope},            {"embedding", embedding},
                     {"logprob", logprob},     {"distill", distill},      {"sample", sample},   {"optimizer", optimizer}};
    for (const int32_t format : {FLOAT32, BFLOAT16, FLOAT16})
        for (const auto& each : operators)
            if (wanted(each.name)) each.run(format);
    return 0;
}
