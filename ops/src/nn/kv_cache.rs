use autobwd::{Builder, DType, Expr, New, emit};

use super::layer_name;
use crate::{
    Init, Math,
    attention::{AssertWithin, AttentionAttrs, AttentionOptions, CacheUpdate},
    math::failed,
};

/// The keys and values of earlier positions, for all attention layers of a model that generates a sequence step by
/// step.
///
/// The capacity is a shape, and the used part is data: one plan serves all steps of a generation, a step writes its own
/// rows in place, and its time grows with the positions before it. Sequences of a batch have positions of their own. A
/// cache needs no clearing, as a position sees those up to itself alone, which were written after a new start.
///
/// A row of a step has the bits that it has in one pass over the whole sequence.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Scope, Tensor};
/// use autobwd_ops::{Math, attention::AttentionOptions, nn::KvCache};
///
/// // One sequence of at most 8 positions, two heads with one column each.
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[1, -1, 2, 1]);
/// let positions = net.input("positions", DType::I64, &[1, -1]);
/// let cache = KvCache::builder(&net, 1, [1, 8, 2, 1]).build();
/// let y = cache.at(&positions).attend(0, &x, &x, &x, &AttentionOptions::default());
///
/// let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// let mut outs = vec![];
/// for (position, x) in [2.0_f32, 5.0].into_iter().enumerate() {
///     let x = Tensor::from_vec([1, 1, 2, 1], vec![x, 0.0])?;
///     let positions = Tensor::from_vec([1, 1], vec![position as i64])?;
///     let fetched =
///         executor.run(&net.program()?, &mut scope, &[("x", &x), ("positions", &positions)], &[&y.name()])?;
///     outs.extend(fetched);
/// }
/// assert_eq!(outs[0].slice::<f32>()?, [2.0, 0.0]);
/// // The second position sees the first one as well.
/// assert!((2.0..5.0).contains(&outs[1].slice::<f32>()?[0]));
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Debug)]
pub struct KvCache {
    /// Keys and values of each layer, `[batch, capacity, heads, depth]`, 0 at first.
    pub layers: Vec<[Expr; 2]>,
    capacity: usize,
}

/// Builder of a [`KvCache`].
#[derive(Debug)]
pub struct KvCacheBuilder<'a> {
    net: &'a Builder,
    name: Option<String>,
    layers: usize,
    dims: [usize; 4],
    dtype: DType,
}

/// A [`KvCache`] at the positions of one step.
#[derive(Debug)]
pub struct KvCacheStep<'a> {
    cache: &'a KvCache,
    positions: Expr,
}

impl KvCache {
    /// A cache for `layers` layers: float32, `[batch, capacity, heads of keys, depth]`.
    pub fn builder(net: &Builder, layers: usize, dims: [usize; 4]) -> KvCacheBuilder<'_> {
        KvCacheBuilder { net, name: None, layers, dims, dtype: DType::F32 }
    }

    /// The cache at the positions of the rows of a step, int64 `[batch, n]`; −1 is padding, which is not kept. A step
    /// with a position beyond the capacity fails before it changes anything.
    #[track_caller]
    pub fn at(&self, positions: &Expr) -> KvCacheStep<'_> {
        let (x, out, high) = (positions.into(), New, self.capacity as i64);
        KvCacheStep { cache: self, positions: emit(AssertWithin { x, out, low: -1, high }).out }
    }
}

impl KvCacheStep<'_> {
    /// The positions of the step.
    pub fn positions(&self) -> &Expr {
        &self.positions
    }

    /// Keeps keys and values `[batch, n, heads, depth]` of a layer and returns the keys and values of all positions,
    /// `[batch, capacity, heads, depth]`. Fails for other shapes and dtypes than the cache has, and for a layer that it does not have.
    #[track_caller]
    pub fn update(&self, layer: usize, keys: &Expr, values: &Expr) -> [Expr; 2] {
        let Some([of_keys, of_values]) = self.cache.layers.get(layer) else {
            let text = format!("a cache of {} layers has no layer {layer}", self.cache.layers.len());
            return [(); 2].map(|()| failed(&[keys, values], text.clone()));
        };
        [(of_keys, keys), (of_values, values)].map(|(cache, rows)| {
            let positions = (&self.positions).into();
            emit(CacheUpdate { cache: cache.into(), rows: rows.into(), positions, out: cache.into() }).out
        })
    }

    /// Keeps the keys and values of a layer, and attends to the keys and values of all positions up to the own one. Queries,
    /// `[batch, n, heads, depth]`, may share heads of keys; the options of [`Math::attention_with`] apply, in which masks
    /// have the capacity for the number of keys.
    #[track_caller]
    pub fn attend(
        &self,
        layer: usize,
        queries: &Expr,
        keys: &Expr,
        values: &Expr,
        options: &AttentionOptions,
    ) -> Expr {
        let [keys, values] = self.update(layer, keys, values);
        let options = AttentionOptions {
            positions: Some(self.positions.clone()),
            attrs: AttentionAttrs { causal: true, ..options.attrs.clone() },
            ..options.clone()
        };
        queries.attention_with(&keys, &values, &options)
    }
}

impl KvCacheBuilder<'_> {
    super::layer_setters!(name, dtype);

    /// Adds keys and values to the program: `kv_cache_0.0.keys`, and so on with `values` and other layers.
    #[track_caller]
    pub fn build(self) -> KvCache {
        let KvCacheBuilder { net, name, layers, dims, dtype } = self;
        let name = layer_name(net, "kv_cache", name.as_deref());
        let layers = (0..layers).map(|layer| {
            ["keys", "values"].map(|part| {
                let name = format!("{name}.{layer}.{part}");
                net.persistable_with_gradient(&name, dtype, &dims, |x| Init::Constant(0.0).emit(x, 0))
            })
        });
        KvCache { layers: layers.collect(), capacity: dims[1] }
    }
}
