// The kernels that have a name in Eigen, or are an expression or two of it. One thread.
#include <Eigen/Dense>
#include <map>

#include "lockstep/bench/kernels/peers.h"

namespace bench {
namespace {

using namespace lockstep;

using Flat = Eigen::Map<Eigen::ArrayXf>;
using Rows = Eigen::Map<Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
template <class T>
using Matrix = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

Flat flat(const Tensor& t) { return {t.data<float>(), t.numel()}; }
Rows rows(const Tensor& t) { return {t.data<float>(), t.size(0), t.size(1)}; }

/// out = f(inputs), all of one size.
template <class F>
Run elementwise(const Case& work, F f) {
  const Tensor out = work.outputs[0].tensor, a = work.inputs[0];
  if constexpr (std::is_invocable_v<F, Flat>) {
    return [=] { flat(out) = f(flat(a)); };
  } else {
    return [=, b = work.inputs[1]] { flat(out) = f(flat(a), flat(b)); };
  }
}

using Maker = Run (*)(const Case&);

const std::map<std::string, Maker>& makers() {
  static const std::map<std::string, Maker> all = {
      {"relu", [](const Case& w) { return elementwise(w, [](Flat x) { return x.max(0.0f); }); }},
      {"sigmoid",
       [](const Case& w) { return elementwise(w, [](Flat x) { return x.logistic(); }); }},
      {"tanh", [](const Case& w) { return elementwise(w, [](Flat x) { return x.tanh(); }); }},
      {"exp", [](const Case& w) { return elementwise(w, [](Flat x) { return x.exp(); }); }},
      {"log", [](const Case& w) { return elementwise(w, [](Flat x) { return x.log(); }); }},
      {"square", [](const Case& w) { return elementwise(w, [](Flat x) { return x.square(); }); }},
      {"neg", [](const Case& w) { return elementwise(w, [](Flat x) { return -x; }); }},
      {"add", [](const Case& w) { return elementwise(w, [](Flat a, Flat b) { return a + b; }); }},
      {"sub", [](const Case& w) { return elementwise(w, [](Flat a, Flat b) { return a - b; }); }},
      {"mul", [](const Case& w) { return elementwise(w, [](Flat a, Flat b) { return a * b; }); }},
      {"div", [](const Case& w) { return elementwise(w, [](Flat a, Flat b) { return a / b; }); }},
      {"scale", [](const Case& w) { return elementwise(w, [](Flat x) { return 0.75f * x; }); }},
      {"scale_accumulate",
       [](const Case& w) {
         return elementwise(w, [](Flat x, Flat out) { return out + 0.75f * x; });
       }},
      {"tree_reduce_2",
       [](const Case& w) { return elementwise(w, [](Flat a, Flat b) { return a + b; }); }},
      {"add_row",
       [](const Case& w) -> Run {
         return [x = w.inputs[0], b = w.inputs[1], out = w.outputs[0].tensor] {
           rows(out) = rows(x).rowwise() + flat(b).transpose();
         };
       }},
      {"transpose",
       [](const Case& w) -> Run {
         return [x = w.inputs[0], out = w.outputs[0].tensor] { rows(out) = rows(x).transpose(); };
       }},
      {"sum",
       [](const Case& w) -> Run {
         return [x = w.inputs[0], out = w.outputs[0].tensor] { flat(out)[0] = flat(x).sum(); };
       }},
      {"sum_rows",
       [](const Case& w) -> Run {
         return
             [x = w.inputs[0], out = w.outputs[0].tensor] { flat(out) = rows(x).colwise().sum(); };
       }},
      {"sum_cols",
       [](const Case& w) -> Run {
         return
             [x = w.inputs[0], out = w.outputs[0].tensor] { flat(out) = rows(x).rowwise().sum(); };
       }},
      {"mse",
       [](const Case& w) -> Run {
         return [x = w.inputs[0], y = w.inputs[1], loss = w.outputs[0].tensor] {
           flat(loss)[0] = (flat(x) - flat(y)).square().mean();
         };
       }},
      {"sgd_step",
       [](const Case& w) -> Run {
         return [value = w.inputs[0], gradient = w.inputs[1], momentum = w.inputs[2]] {
           flat(momentum) = 0.9f * flat(momentum) + flat(gradient);
           flat(value) -= 0.01f * flat(momentum);
         };
       }},
  };
  return all;
}

template <class T>
Run product_run(const Product& p) {
  return [p] {
    const auto matrix = [](const Tensor& t) {
      return Matrix<T>(t.data<T>(), t.size(0), t.size(1));
    };
    const Matrix<T> a = matrix(p.a), b = matrix(p.b);
    Matrix<T> out = matrix(p.out);
    if (p.flags.transpose_a)
      out.noalias() = a.transpose() * b;
    else if (p.flags.transpose_b)
      out.noalias() = a * b.transpose();
    else
      out.noalias() = a * b;
  };
}

}  // namespace

Run eigen(const std::string& kernel, const Case& work) {
  const auto maker = makers().find(kernel);
  return maker == makers().end() ? Run() : maker->second(work);
}

Run eigen_product(const Product& product) {
  if (product.flags.transpose_a && product.flags.transpose_b) return {};
  switch (product.out.dtype()) {
    case DType::f32: return product_run<float>(product);
    case DType::f64: return product_run<double>(product);
    default: return {};
  }
}

}  // namespace bench
