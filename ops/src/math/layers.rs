//! Products, convolutions, attention, losses and random numbers.

macro_rules! layers {
    ($methods:ident) => {
        $methods! {
            /// Matrix product; dimensions before the last two are batch dimensions, which broadcast.
            fn matmul(&self, other: &Expr) -> Expr {
                emit(MatmulV2 { x: self.into(), y: other.into(), out: New, trans_x: false, trans_y: false }).out
            }

            /// Products of two batches of matrices, `[batch, m, k]` and `[batch, k, n]`.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([2, 1, 2], vec![1.0_f32, 2.0, 3.0, 4.0])?);
            /// let y = tape.constant(Tensor::from_vec([2, 2, 1], vec![1.0_f32, 1.0, 2.0, 0.0])?);
            /// assert_eq!(x.bmm(&y).tensor()?.slice::<f32>()?, [3.0, 6.0]);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn bmm(&self, other: &Expr) -> Expr { binary!(Bmm, self, other) }

            /// Dot product of vectors, or of each pair of rows of two matrices.
            fn dot(&self, other: &Expr) -> Expr { binary!(Dot, self, other) }

            /// Convolution of images `[n, channels, height, width]` with filters `[m, channels, height, width]`, with
            /// equal `stride` and zero `padding` in both directions.
            fn conv2d(&self, filters: &Expr, stride: i32, padding: i32) -> Expr {
                let op = Conv2dOp {
                    input: self.into(),
                    filter: filters.into(),
                    output: New,
                    conv: ConvAttrs::default().strides(vec![stride; 2]).paddings(vec![padding; 2]),
                };
                emit(op).output
            }

            /// Max pooling of images `[n, channels, height, width]` with windows of `size` by `size`.
            fn max_pool2d(&self, size: i32, stride: i32) -> Expr { pooling!(Max, self, size, stride) }

            /// Average pooling of images `[n, channels, height, width]` with windows of `size` by `size`.
            fn avg_pool2d(&self, size: i32, stride: i32) -> Expr { pooling!(Avg, self, size, stride) }

            /// Repeats every element of images `[n, channels, height, width]` `factor` times in both directions.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([1, 1, 1, 2], vec![3.0_f32, 4.0])?);
            /// let y = x.upsample_nearest(2);
            /// assert_eq!(y.tensor()?.slice::<f32>()?, [3.0, 3.0, 4.0, 4.0, 3.0, 3.0, 4.0, 4.0]);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn upsample_nearest(&self, factor: i32) -> Expr {
                let interp = InterpAttrs::scaling(InterpMethod::Nearest, [factor as f32; 2]).align_corners(false);
                let (x, out_size, size_tensor, scale) = (self.into(), None, vec![], None);
                emit(NearestInterpV2 { x, out_size, size_tensor, scale, out: New, interp }).out
            }

            /// Enlarges images `[n, channels, height, width]` by `factor` in both directions, with linear
            /// interpolation. The images are as large as their outer edges, or with `align_corners` as the centres of
            /// their corner elements.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([1, 1, 1, 2], vec![0.0_f32, 4.0])?);
            /// let y = x.upsample_bilinear(2, false);
            /// assert_eq!(y.tensor()?.slice::<f32>()?, [0.0, 1.0, 3.0, 4.0, 0.0, 1.0, 3.0, 4.0]);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn upsample_bilinear(&self, factor: i32, align_corners: bool) -> Expr {
                let interp = InterpAttrs::scaling(InterpMethod::Bilinear, [factor as f32; 2]);
                let interp = interp.align_corners(align_corners).align_mode(0);
                let (x, out_size, size_tensor, scale) = (self.into(), None, vec![], None);
                emit(BilinearInterpV2 { x, out_size, size_tensor, scale, out: New, interp }).out
            }

            /// Moves groups of `factor²` channels of images `[n, channels, height, width]` to squares of pixels.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([1, 4, 1, 1], vec![1.0_f32, 2.0, 3.0, 4.0])?);
            /// let y = x.pixel_shuffle(2);
            /// assert_eq!(y.dims().to_string(), "[1, 1, 2, 2]");
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn pixel_shuffle(&self, factor: i32) -> Expr {
                let data_format = DataLayout::Nchw;
                emit(PixelShuffle { x: self.into(), out: New, upscale_factor: factor, data_format }).out
            }

            /// Scaled dot-product attention of every head, `softmax(q · kᵀ / √d) · v`: `self` are the queries `q`,
            /// `[batch, queries, heads, d]`, keys and values are `[batch, keys, heads, d]`. If `causal`, a query
            /// attends to the keys up to its own position; the last query is at the position of the last key.
            ///
            /// Memory is linear in the numbers of queries and keys, see [`ScaledDotProductAttention`].
            fn attention(&self, keys: &Expr, values: &Expr, causal: bool) -> Expr {
                let attrs = AttentionAttrs { causal, ..AttentionAttrs::default() };
                self.attention_with(keys, values, &AttentionOptions { attrs, ..AttentionOptions::default() })
            }

            /// As [`attention`](Math::attention), with options: heads that share keys and values, masks, a window,
            /// documents packed into one row, positions of queries, soft caps, dropout.
            fn attention_with(&self, keys: &Expr, values: &Expr, options: &AttentionOptions) -> Expr {
                let AttentionOptions { mask, documents, positions, seed, attrs } = options;
                let (q, k, v) = (self.into(), keys.into(), values.into());
                let [mask, documents, positions, seed_tensor] =
                    [mask, documents, positions, seed].map(|option| option.as_ref().map(Into::into));
                let (out, log_sum, attention) = (New, New, attrs.clone());
                let op = ScaledDotProductAttention {
                    q, k, v, mask, documents, positions, seed_tensor, out, log_sum, attention
                };
                emit(op).out
            }

            /// As [`attention`](Math::attention), with a mask of a shape that broadcasts to `[batch, heads, queries,
            /// keys]`: if bool, a query attends to the keys where the mask is true, and its result is 0 if there are
            /// none; numbers are added to the products.
            ///
            /// ```
            /// # use autobwd::{Tensor, tensor::Bool};
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([1, 2, 1, 1], vec![1.0_f32, 5.0])?);
            /// let only_first = tape.constant(Tensor::from_vec([1, 1, 1, 2], vec![Bool::from(true),
            /// Bool::from(false)])?); let out = x.masked_attention(&x, &x, &only_first, false);
            /// assert_eq!(out.tensor()?.slice::<f32>()?, [1.0, 1.0]);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn masked_attention(&self, keys: &Expr, values: &Expr, mask: &Expr, causal: bool) -> Expr {
                let (attrs, mask) = (AttentionAttrs { causal, ..AttentionAttrs::default() }, Some(mask.clone()));
                self.attention_with(keys, values, &AttentionOptions { mask, attrs, ..AttentionOptions::default() })
            }

            /// Rotary position embedding (Su et al., 2021) of queries or keys, `[batch, length, heads, d]`: the
            /// elements `i` and `i + d/2` of each head are rotated by the angle `position · base^(-2i/d)`. Positions
            /// are numbers of shape `[length]` or `[batch, length]`; `base` is 10,000 in the paper. Fails for an odd or
            /// unknown `d`.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([1, 2, 1, 2], vec![1.0_f32, 0.0, 1.0, 0.0])?);
            /// let positions = tape.constant(Tensor::from_vec([2], vec![0_i64, 1])?);
            /// let rotated = x.rotary_embedding(&positions, 10_000.0).tensor()?;
            /// let expected = [1.0, 0.0, 1.0_f32.cos(), 1.0_f32.sin()];
            /// assert!(rotated.slice::<f32>()?.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-6));
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn rotary_embedding(&self, positions: &Expr, base: f64) -> Expr {
                self.rotary_embedding_with(positions, &Rotary { base, scaling: RotaryScaling::Unscaled })
            }

            /// As [`rotary_embedding`](Math::rotary_embedding), in the forms for long sequences of published models.
            /// Fails as [`Rotary::frequencies`].
            fn rotary_embedding_with(&self, positions: &Expr, rotary: &Rotary) -> Expr {
                rotary_embedding(self, positions, rotary)
            }

            /// The loss of connectionist temporal classification ([`CtcLoss`](crate::loss::CtcLoss)) of logits `[steps, batch,
            /// classes]` for labels `[batch, longest]`: one loss a row, `[batch, 1]`. Class 0 is the blank.
            ///
            /// `lengths` are the number of steps of each row and the number of classes of each label, `[batch]` each.
            fn ctc_loss(&self, labels: &Expr, lengths: [&Expr; 2]) -> Expr {
                let [logits_length, label_length] = lengths.map(|length| Some(length.into()));
                let (logits, label) = (self.into(), labels.into());
                emit(Warpctc { logits, label, logits_length, label_length, loss: New, blank: 0 }).loss
            }

            /// Cross entropy between `softmax(x)` along the last axis and class indices of shape `[.., 1]` or `[..]`:
            /// one loss a row, of shape `[.., 1]`.
            ///
            /// Rows with label −100 are ignored: their loss and gradient are 0. [`mean`](Math::mean) divides by all
            /// rows, including ignored ones; [`mean_cross_entropy`](Math::mean_cross_entropy) by the rows that are not
            /// ignored.
            fn cross_entropy(&self, labels: &Expr) -> Expr {
                let op = SoftmaxWithCrossEntropy {
                    logits: self.into(),
                    label: labels.into(),
                    softmax: New,
                    loss: New,
                    soft_label: false,
                    ignore_index: -100,
                    numeric_stable_mode: true,
                    use_softmax: true,
                    axis: -1,
                };
                emit(op).loss
            }

            /// The mean of [`cross_entropy`](Math::cross_entropy) over the rows that are not ignored, rank 0. NaN if
            /// all rows are ignored, as in PyTorch.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([3, 2], vec![1.0_f32, 1.0, 2.0, 2.0, 3.0, 4.0])?);
            /// let labels = tape.constant(Tensor::from_vec([3, 1], vec![0_i64, 1, -100])?);
            /// let loss = x.mean_cross_entropy(&labels);
            /// assert_eq!(loss.tensor()?.slice::<f32>()?, [2.0_f32.ln()]);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn mean_cross_entropy(&self, labels: &Expr) -> Expr {
                let losses = self.cross_entropy(labels);
                let (shape, dtype, value) = (vec![1], labels.dtype(), -100.0);
                let ignored = FillConstant { shape, dtype, value, ..FillConstant::of(New) };
                let ignored = self.builder().emit(ignored).out;
                let counted = labels.not_equal(&ignored).cast(losses.dtype());
                losses.sum(&[]) / counted.sum(&[])
            }

            /// Elementwise binary cross entropy between `sigmoid(x)` and target probabilities of the same shape.
            fn sigmoid_cross_entropy(&self, labels: &Expr) -> Expr {
                if let Some(failed) = unequal_shapes("sigmoid_cross_entropy", self, labels) {
                    return failed;
                }
                let op = SigmoidCrossEntropyWithLogits {
                    x: self.into(),
                    label: labels.into(),
                    out: New,
                    normalize: false,
                    ignore_index: -100,
                };
                emit(op).out
            }

            /// Elementwise Huber loss of targets `other`, of the same shape: quadratic up to a residual of `delta`,
            /// linear beyond.
            fn huber_loss(&self, other: &Expr, delta: f32) -> Expr {
                if let Some(failed) = unequal_shapes("huber_loss", self, other) {
                    return failed;
                }
                emit(HuberLoss { x: self.into(), y: other.into(), out: New, residual: New, delta }).out
            }

            /// Elementwise `(x - y)²` for targets of the same shape. Another shape fails, also one that is known only
            /// when the program runs: a loss does not broadcast.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([2, 1], vec![1.0_f32, 2.0])?);
            /// let y = tape.constant(Tensor::from_vec([2], vec![1.0_f32, 4.0])?);
            /// assert!(x.square_error(&y).tensor().unwrap_err().to_string().contains("`.reshape(&[2, 1])`"));
            /// assert_eq!(x.square_error(&y.reshape(&[2, 1])).tensor()?.slice::<f32>()?, [0.0, 4.0]);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn square_error(&self, other: &Expr) -> Expr {
                if let Some(failed) = unequal_shapes("square_error", self, other) {
                    return failed;
                }
                emit(Minus { x: self.into(), y: other.into(), out: New }).out.square()
            }

            /// The fraction of rows whose largest element is at the label's position: shape `[1]`.
            fn accuracy(&self, labels: &Expr) -> Expr {
                let (values, positions) = self.top_k(1);
                let op = Accuracy {
                    out: values.into(),
                    indices: positions.into(),
                    label: labels.into(),
                    accuracy: New,
                    correct: New,
                    total: New,
                };
                emit(op).accuracy
            }

            /// The rows of a table with indices `self`. The gradient of the table is dense;
            /// [`nn::Embedding`](crate::nn::Embedding) also has sparse ones.
            fn embedding(&self, table: &Expr) -> Expr {
                let (ids, w) = (self.into(), table.into());
                emit(LookupTableV2 { ids, w, out: New, padding_idx: -1, is_sparse: false }).out
            }

            /// One-hot encoding of the indices, with `depth` float32 classes.
            fn one_hot(&self, depth: i32) -> Expr {
                let (x, dtype) = (self.into(), DType::F32);
                emit(OneHotV2 { x, out: New, depth, dtype, allow_out_of_range: false }).out
            }

            /// Dropout with that probability; kept elements are scaled by `1 / (1 - p)`. Equal seeds, one int64 or
            /// int32 number, give equal masks: feed a new seed at each run. In [evaluation
            /// mode](autobwd::Builder::eval_mode), `self`.
            ///
            /// [`nn::Dropout`](crate::nn::Dropout) counts its seed by itself.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([4], vec![1.0_f32; 4])?);
            /// let seed = tape.constant(Tensor::from_vec([1], vec![7_i64])?);
            /// let trained = x.dropout(0.5, &seed);
            /// assert!(trained.tensor()?.slice::<f32>()?.iter().all(|x| [0.0, 2.0].contains(x)));
            /// assert!(tape.eval_mode(|| x.dropout(0.5, &seed)).is(&x));
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn dropout(&self, probability: f32, seed: &Expr) -> Expr {
                if self.builder().is_eval_mode() {
                    return self.clone();
                }
                let op = DropoutOp {
                    x: self.into(),
                    seed_tensor: Some(seed.into()),
                    out: New,
                    mask: New,
                    dropout_prob: probability,
                    dropout_implementation: DropoutImplementation::UpscaleInTrain,
                    is_test: false,
                    fix_seed: true,
                    seed: 0,
                };
                emit(op).out
            }

            /// Standard normal numbers in the shape of `x`. Equal seeds, one int64 or int32 number, give equal numbers:
            /// [`nn::StepSeed`](crate::nn::StepSeed) is another seed at each run.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([3], vec![0.0_f32; 3])?);
            /// let seeds = [1_i64, 1, 2].map(|seed| tape.constant(Tensor::from_vec([1], vec![seed]).unwrap()));
            /// let noise = seeds.map(|seed| x.randn_like(&seed).tensor().unwrap());
            /// assert_eq!(noise[0].bytes(), noise[1].bytes());
            /// assert_ne!(noise[0].bytes(), noise[2].bytes());
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn randn_like(&self, seed: &Expr) -> Expr {
                let distribution = NoiseDistribution::Normal;
                emit(NoiseLike { x: self.into(), seed: seed.into(), out: New, distribution }).out
            }

            /// As [`randn_like`](Math::randn_like), uniform in [0, 1).
            fn rand_like(&self, seed: &Expr) -> Expr {
                let distribution = NoiseDistribution::Uniform;
                emit(NoiseLike { x: self.into(), seed: seed.into(), out: New, distribution }).out
            }
        }
    };
}
pub(super) use layers;
