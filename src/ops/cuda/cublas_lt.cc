// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/cublas_lt.h"

#include "ops/cuda/lt_choice.h"

namespace brim::ops {

using device::CudaStream;

namespace {

void run(CudaStream& stream, const LtProblem& p, const LtOperands& o) {
  LtChoices& choices = lt_choices_of(stream);
  if (p.lanes > 0) {
    std::optional<cublasLtMatmulAlgo_t> algo = choices.for_so_many_lanes(p);
    if (!algo) {
      const auto known = choices.for_lanes(p);
      algo = known ? *known : lt_choose_for_lanes(stream, choices, p, o);
      if (!stream.capturing()) {
        algo = lt_fastest_alike(stream, choices, p, o, *algo);
        choices.keep_for_so_many_lanes(p, *algo);
      }
    }
    LtDescription lanes(p, o);
    return check_lt(lt_try_run(stream, choices.handle(), p, o, lanes, *algo), "cublasLtMatmul", lt_key_text(p));
  }
  LtDescription d(p, o);
  if (const int64_t tokens = stream.algorithm_tokens(); tokens > 0 && !p.tokens_in_k)
    return check_lt(lt_try_run(stream, choices.handle(), p, o, d, choices.fixed(p, o, tokens)), "cublasLtMatmul",
                    lt_key_text(p));
  const cublasStatus_t status = lt_try_run(stream, choices.handle(), p, o, d, choices.algorithm(p, o));
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE)
    check_lt(status, "cublasLtMatmul", lt_key_text(p));
  check_lt(lt_try_run(stream, choices.handle(), p, o, d, choices.exact(p, o)), "cublasLtMatmul", lt_key_text(p));
}

}  // namespace

void lt_matmul(CudaStream& stream, const LtProblem& p, const LtOperands& o) {
  run(stream, p, o);
  stream.set_chains(true);
}

void fix_gemm_algorithms_cuda(device::Stream& stream) { as_cuda(stream).set_algorithm_tokens(kFullTokens); }

void spare_gemm_library_cuda(device::Stream& stream) { as_cuda(stream).spare_library(); }

void release_gemm_library_cuda(device::Stream& stream) {
  stream.synchronize();
  if (!as_cuda(stream).spares_library()) lt_choices_of(as_cuda(stream)).release_handle();
}

std::vector<GemmChoice> gemm_choices_cuda(device::Stream& stream) {
  if (as_cuda(stream).spares_library()) return {};
  return lt_choices_of(as_cuda(stream)).all();
}
void use_gemm_choices_cuda(device::Stream& stream, const std::vector<GemmChoice>& choices) {
  lt_choices_of(as_cuda(stream)).use(choices);
}
std::string gemm_library_cuda(device::Stream& stream) {
  return fmt::format("{} driver {} cublaslt {}", as_cuda(stream).info().name, as_cuda(stream).info().driver_version,
                     lt_library().cublasLtGetVersion());
}

}  // namespace brim::ops
