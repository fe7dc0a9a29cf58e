// SPDX-License-Identifier: Apache-2.0
// Describes a product to cuBLASLt and runs one algorithm on it.
#pragma once
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/cublas_lt.h"
#include "ops/cuda/lt_library.h"

namespace brim::ops {

cudaDataType_t lt_data_type(DType t);
cublasComputeType_t lt_compute_type(const LtProblem& p);

// A problem in the library's terms. Descriptors are on the stack; creating them takes about a microsecond per call.
struct LtDescription {
  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t a, b, c, d;

  LtDescription(const LtProblem& p, const LtOperands& o);

 private:
  template <class V>
  void set(cublasLtMatmulDescAttributes_t what, const V& value);
};

std::string lt_key_text(const LtProblem& p);  // name of a product in messages and in files of choices

cublasStatus_t lt_try_run(device::CudaStream& stream, cublasLtHandle_t handle, const LtProblem& p, const LtOperands& o,
                          LtDescription& d, const cublasLtMatmulAlgo_t& algo);

// Mean time of `runs` on the stream, measured by events.
class LtStopwatch {
 public:
  explicit LtStopwatch(device::CudaStream& stream) : stream_(stream) {
    BRIM_CUDA_CHECK(cudaEventCreate(begin_.out()));
    BRIM_CUDA_CHECK(cudaEventCreate(end_.out()));
  }
  template <class F>
  double us(int runs, F&& f) {
    BRIM_CUDA_CHECK(cudaEventRecord(begin_.get(), stream_.handle()));
    for (int i = 0; i < runs; ++i)
      if (!f()) return 1e30;
    BRIM_CUDA_CHECK(cudaEventRecord(end_.get(), stream_.handle()));
    BRIM_CUDA_CHECK(cudaEventSynchronize(end_.get()));
    float ms = 0;
    BRIM_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_.get(), end_.get()));
    return static_cast<double>(ms) * 1e3 / runs;
  }
  // For runs shorter than their launch: measures `runs` of them as one graph.
  template <class F>
  double us_in_graph(int runs, F&& f) {
    if (!f()) return 1e30;  // loads modules, which is not allowed during capture
    BRIM_CUDA_CHECK(cudaStreamBeginCapture(stream_.handle(), cudaStreamCaptureModeThreadLocal));
    bool ran = true;
    for (int i = 0; i < runs && ran; ++i) ran = f();
    device::CudaGraphHandle graph;
    device::CudaGraphExecHandle exec;
    const bool captured = cudaStreamEndCapture(stream_.handle(), graph.out()) == cudaSuccess && ran;
    if (!captured || cudaGraphInstantiate(exec.out(), graph.get(), 0) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return 1e30;
    }
    const auto launch = [&] { return cudaGraphLaunch(exec.get(), stream_.handle()) == cudaSuccess; };
    return launch() ? us(1, launch) / runs : 1e30;
  }

 private:
  device::CudaStream& stream_;
  device::CudaEventHandle begin_, end_;
};

}  // namespace brim::ops
