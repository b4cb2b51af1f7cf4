// Gradient norms on the CPU: a piece of a tensor is one task; its sum is one of many that are added at the end.
#include <vector>

#include "ops/_cpu/lane_sum.h"
#include "ops/_cpu/rows.h"

namespace {
using namespace samebits;

// Decides bits: elements of one partial sum.
constexpr int64_t PIECE = 65536;
// Keeps a norm of 0 from dividing by zero, as in torch.
constexpr float SMALL = 1e-6f;

// One row of the table that Python hands over; pointers travel as integers.
struct Entry {
    int64_t size, format, address;
};
struct Piece {
    int64_t first, count;
    const Entry* entry;
};

std::vector<Piece> pieces_of(int64_t tensors, const void* table) {
    const Entry* entries = static_cast<const Entry*>(table);
    std::vector<Piece> pieces;
    for (const Entry* entry = entries; entry < entries + tensors; ++entry)
        for (int64_t first = 0; first < entry->size; first += PIECE)
            pieces.push_back({first, std::min(PIECE, entry->size - first), entry});
    return pieces;
}

// Runs body(pointer to the piece's first element) for the piece's storage type.
template <class Body>
void with_piece(const Piece& piece, Body&& body) {
    with_format(static_cast<int32_t>(piece.entry->format), 1, piece.count, [&](auto zero) {
        using T = decltype(zero);
        body(reinterpret_cast<T*>(piece.entry->address) + piece.first);
    });
}

}  // namespace

// total = the sum of all squares: each piece in lanes, then the pieces' sums in lanes.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(grad_square_sum)(int64_t tensors, const void* table, float* total,
                                                       int32_t threads) {
    return guarded([&] {
        const std::vector<Piece> pieces = pieces_of(tensors, table);
        const int64_t count = static_cast<int64_t>(pieces.size());
        std::vector<float> sums(pieces.size());
        parallel_for(count, threads, [&](int64_t number) {
            const size_t place = static_cast<size_t>(number);
            with_piece(pieces[place], [&](const auto* x) {
                sums[place] = lane_sum(pieces[place].count, [&](Floats sum, int64_t i, int some) {
                    const Floats value = load_part(x + i, some);
                    return fma(value, value, sum);
                });
            });
        });
        *total = lane_sum(count, [&](Floats sum, int64_t i, int some) {
            return add(sum, load_part(sums.data() + i, some));
        });
    });
}

// g = round(g * min(1, max_norm / (norm + 1e-6))); a norm that is not a number stays visible in every gradient.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(grad_norm_clip)(int64_t tensors, const void* table, float norm, float max_norm,
                                                      int32_t threads) {
    return guarded([&] {
        const float quotient = max_norm / (norm + SMALL);
        if (quotient >= 1.0f) return;  // times 1: the bits stay
        const Floats scale = broadcast(quotient);
        const std::vector<Piece> pieces = pieces_of(tensors, table);
        parallel_for(static_cast<int64_t>(pieces.size()), threads, [&](int64_t number) {
            const Piece& piece = pieces[static_cast<size_t>(number)];
            with_piece(piece, [&](auto* g) {
                each_vector(piece.count, [&](int64_t i, int some) {
                    store_part(g + i, mul(load_part(g + i, some), scale), some);
                });
            });
        });
    });
}
