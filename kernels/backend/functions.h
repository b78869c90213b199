// The functions of a backend, once for the interface and for every kind of device: backend.h and
// the kinds' own headers include this list in a class, with LOCKSTEP_BACKEND as `= 0` or
// `override`.

// NOLINTBEGIN(modernize-use-override)

// elementwise.h
virtual void unary(Unary op, const Tensor& x, const Tensor& out) LOCKSTEP_BACKEND;
/// `saved` is `dy` where the operation looks at nothing saved.
virtual void unary_backward(Unary op, const Tensor& dy, const Tensor& saved, const Tensor& dx,
                            bool accumulate) LOCKSTEP_BACKEND;
virtual void binary(Binary op, const Tensor& a, const Tensor& b, const Tensor& out,
                    bool accumulate) LOCKSTEP_BACKEND;
virtual void broadcast_to(const Tensor& x, const Tensor& out, bool accumulate,
                          double alpha) LOCKSTEP_BACKEND;
virtual void cast(const Tensor& x, const Tensor& out) LOCKSTEP_BACKEND;
virtual void transpose(const Tensor& x, const Tensor& out) LOCKSTEP_BACKEND;

// indexed.h
virtual IndexedFunctions& indexed() LOCKSTEP_BACKEND;

// reduce.h
virtual void sum(const Tensor& x, const Tensor& out, bool accumulate,
                 double divisor) LOCKSTEP_BACKEND;
virtual void sum_rows(const Tensor& x, const Tensor& out, bool accumulate,
                      double divisor) LOCKSTEP_BACKEND;
virtual void sum_cols(const Tensor& x, const Tensor& out, bool accumulate,
                      double divisor) LOCKSTEP_BACKEND;
/// Only for pairs of shapes to which none of the three above applies; x has elements.
virtual void sum_to(const Tensor& x, const Tensor& out, bool accumulate,
                    double divisor) LOCKSTEP_BACKEND;
/// x has elements.
virtual void norm(const Tensor& x, const Tensor& out) LOCKSTEP_BACKEND;
/// Of the middle dimension, which has elements, of x (outer, n, inner); with `smallest` of -x.
virtual void argmax(const Tensor& x, bool smallest, const Tensor& out) LOCKSTEP_BACKEND;
virtual void find_nonfinite(const Tensor& x, const Tensor& flag) LOCKSTEP_BACKEND;

// loss.h
virtual void softmax(const Tensor& x, const Tensor& out) LOCKSTEP_BACKEND;
virtual void log_softmax(const Tensor& x, const Tensor& out) LOCKSTEP_BACKEND;
virtual void logsumexp(const Tensor& x, const Tensor& out) LOCKSTEP_BACKEND;
virtual void log_softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& dx,
                                  bool accumulate) LOCKSTEP_BACKEND;
virtual void cross_entropy(const Tensor& logits, const Tensor& labels, const Tensor& loss,
                           const Tensor& saved, std::optional<double> dloss) LOCKSTEP_BACKEND;
virtual void cross_entropy_backward(const Tensor& dloss, const Tensor& saved, const Tensor& dlogits,
                                    bool accumulate) LOCKSTEP_BACKEND;
virtual void mse(const Tensor& x, const Tensor& y, const Tensor& loss) LOCKSTEP_BACKEND;
virtual void mse_backward(const Tensor& dloss, const Tensor& x, const Tensor& y, const Tensor& dx,
                          bool accumulate) LOCKSTEP_BACKEND;
virtual void huber(const Tensor& x, const Tensor& y, double delta,
                   const Tensor& loss) LOCKSTEP_BACKEND;
virtual void huber_backward(const Tensor& dloss, const Tensor& x, const Tensor& y, double delta,
                            const Tensor& dx, bool accumulate) LOCKSTEP_BACKEND;

// matmul.h: sizes m, n and k are > 0.
virtual void matmul(const Tensor& a, const Tensor& b, const Epilogue& epilogue, const Tensor& out,
                    const MatmulFlags& flags) LOCKSTEP_BACKEND;
/// dy and x have elements.
virtual void linear_gradients(const Tensor& dy, const Tensor& x, const Into& dw, const Into& dbias,
                              DType round_to) LOCKSTEP_BACKEND;
virtual bool rounds_factors(std::int64_t m, std::int64_t n, std::int64_t k) LOCKSTEP_BACKEND;
/// `out` has elements; K may be 0.
virtual void matmul_blocks(const Tensor& a, const Tensor& b, const Tensor& out, RowBlocks blocks,
                           bool accumulate) LOCKSTEP_BACKEND;

// batch_norm.h
virtual void batch_statistics(const Tensor& x, const Tensor& mean,
                              const Tensor& m2) LOCKSTEP_BACKEND;
virtual void batch_inverse_std(const Tensor& m2, double count, double eps,
                               const Tensor& out) LOCKSTEP_BACKEND;
virtual void batch_normalize(const Tensor& x, const Tensor& mean, const Tensor& inverse_std,
                             const Tensor& weight, const Tensor& bias,
                             const Tensor& out) LOCKSTEP_BACKEND;
virtual void batch_norm_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                             const Tensor& inverse_std, const Tensor& sum_dy,
                             const Tensor& sum_dy_xhat) LOCKSTEP_BACKEND;
virtual void batch_norm_dx(const Tensor& dy, const Tensor& x, const Tensor& mean,
                           const Tensor& inverse_std, const Tensor& weight, const Tensor& mean_dy,
                           const Tensor& mean_dy_xhat, const Tensor& dx,
                           bool accumulate) LOCKSTEP_BACKEND;

// batch_norm.h: rows
virtual void row_normalize(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const RowNormConfig& config, const Tensor& out, const Tensor& mean,
                           const Tensor& inverse_std) LOCKSTEP_BACKEND;
virtual void row_norm_dweight(const Tensor& dy, const Tensor& x, const Tensor& mean,
                              const Tensor& inverse_std, const Tensor& dweight,
                              bool accumulate) LOCKSTEP_BACKEND;
virtual void row_norm_dx(const Tensor& dy, const Tensor& x, const Tensor& mean,
                         const Tensor& inverse_std, const Tensor& weight,
                         const RowNormConfig& config, const Tensor& dx,
                         bool accumulate) LOCKSTEP_BACKEND;

// random.h
virtual void dropout(const PhiloxState& state, const Tensor& x, double p, const Tensor& out,
                     const Tensor& mask) LOCKSTEP_BACKEND;
virtual void dropout_backward(const Tensor& dy, const Tensor& mask, double p, const Tensor& dx,
                              bool accumulate) LOCKSTEP_BACKEND;

// optimizer.h
virtual void sgd_step(std::span<const SgdItem> items, const SgdConfig& config) LOCKSTEP_BACKEND;
virtual void adam_step(std::span<const AdamItem> items, const AdamConfig& config) LOCKSTEP_BACKEND;
virtual void rmsprop_step(std::span<const RmspropItem> items,
                          const RmspropConfig& config) LOCKSTEP_BACKEND;
virtual void lion_step(std::span<const LionItem> items, const LionConfig& config) LOCKSTEP_BACKEND;

// fingerprint.h: `fingerprint.sum` is not null.
virtual void add_fingerprint(std::span<const Tensor> tensors,
                             const Fingerprint& fingerprint) LOCKSTEP_BACKEND;

// clip.h: clip_by_value gets at least one tensor.
virtual void global_norm(std::span<const Tensor> tensors, const Tensor& out) LOCKSTEP_BACKEND;
virtual void clip_by_norm(std::span<const Tensor> tensors, const Tensor& norm,
                          double max_norm) LOCKSTEP_BACKEND;
virtual void clip_by_value(std::span<const Tensor> tensors, double limit) LOCKSTEP_BACKEND;

// tree_reduce.h
virtual void tree_reduce(DType dtype, std::span<const std::byte* const> sources,
                         std::span<std::byte* const> destinations, std::int64_t count,
                         Device device) LOCKSTEP_BACKEND;

// NOLINTEND(modernize-use-override)
