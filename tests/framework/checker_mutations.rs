//! Single mutations of a correct operator: the checker catches them.

use std::cell::Cell;

use autobwd::{
    Buf, Cx, DType, Error, Infer, Kernel, Meta, NoGrad, Result, Var,
    check::{Sample, check_sample, integers, out, uniform},
    op::with_float,
    register_op,
    tensor::OptionalBuf,
};

/// A change of one number of the operator.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Negated,
    Scaled,
    Zero,
    OneMore,
}

/// The number of places at which numbers may be changed.
const SITES: usize = 12;

thread_local! {
    /// The place of the mutation and its change.
    static MUTATION: Cell<Option<(usize, Change)>> = const { Cell::new(None) };
}

/// The number at a place.
fn at(site: usize, x: f64) -> f64 {
    match MUTATION.get().filter(|(mutated, _)| *mutated == site) {
        None => x,
        Some((_, Change::Negated)) => -x,
        Some((_, Change::Scaled)) => x * 1.001,
        Some((_, Change::Zero)) => 0.0,
        Some((_, Change::OneMore)) => x + 1.0,
    }
}

/// `out[i, j] = scale * w[j] * x[rows[i], j] + x[rows[i], j]²`
#[register_op(name = "mutated_rows", grad = RowsGrad)]
pub(crate) struct Rows<V = Var> {
    /// A matrix.
    #[input]
    pub(crate) x: V,
    /// Indices of rows.
    #[input]
    pub(crate) rows: V,
    /// A row.
    #[input]
    pub(crate) w: V,
    /// As many rows as indices.
    #[output]
    pub(crate) out: V,
    /// A factor.
    #[attr(default = 1.0)]
    pub(crate) scale: f64,
}
impl Infer for Rows<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let ([_, m], [k], [w]) = (self.x.unpack()?, self.rows.unpack()?, self.w.unpack()?);
        self.w.same_dtype(&self.x)?;
        self.w.require(w.agrees(m), || "a row of `X` is needed".into())?;
        self.rows.require(self.rows.dtype == DType::I64, || "int64 is needed".into())?;
        self.out.set(self.x.dtype, [k, m].into_iter().collect::<autobwd::Dims>());
        Ok(())
    }
}

fn row(i: i64, n: usize, site: usize) -> Result<usize> {
    let end = at(site, n as f64) as i64;
    if (0..end).contains(&i) { Ok(i as usize) } else { Err(Error::data(format!("there is no row {i}"))) }
}

impl Kernel for Rows<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let [n, m] = [self.x.dims()[0], self.x.dims()[1]];
        with_float!(self.x, T => {
            let (x, w, rows) = (self.x.slice::<T>()?, self.w.slice::<T>()?, self.rows.slice::<i64>()?);
            let out = self.out.slice_mut::<T>()?;
            for (i, from) in rows.iter().enumerate() {
                let from = row(*from, n, 0)?;
                for j in 0..m {
                    let x = x[from * m + j];
                    out[i * m + j] = at(1, self.scale) as T * w[j] * x + at(2, 1.0) as T * x * x;
                }
            }
        });
        Ok(())
    }
}
/// `dx[rows[i], j] += scale * w[j] * dout[i, j] + 2 x dout`, `dw[j] = Σ scale * x * dout`
#[register_op(grad_of = Rows, grad = NoGrad)]
pub(crate) struct RowsGrad<V = Var> {
    pub(crate) x: V,
    pub(crate) rows: V,
    pub(crate) w: V,
    pub(crate) dout: V,
    #[output(like = x)]
    pub(crate) dx: Option<V>,
    #[output(like = w)]
    pub(crate) dw: Option<V>,
    pub(crate) scale: f64,
}
impl Kernel for RowsGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let [n, m] = [self.x.dims()[0], self.x.dims()[1]];
        with_float!(self.x, T => {
            let (x, w, rows) = (self.x.slice::<T>()?, self.w.slice::<T>()?, self.rows.slice::<i64>()?);
            let dout = self.dout.slice::<T>()?;
            let (mut dx, mut dw) = (self.dx.slice_mut::<T>()?, self.dw.slice_mut::<T>()?);
            if let Some(dx) = &mut dx {
                dx.fill(at(3, 0.0) as T);
            }
            if let Some(dw) = &mut dw {
                dw.fill(at(4, 0.0) as T);
            }
            for (i, from) in rows.iter().enumerate() {
                let from = row(*from, n, 5)?;
                for j in 0..m {
                    let (x, d) = (x[from * m + j], dout[i * m + j]);
                    if let Some(dx) = &mut dx {
                        let old = at(6, 1.0) as T * dx[from * m + j];
                        let own = at(7, self.scale) as T * w[j] * d + at(8, 2.0) as T * x * d;
                        dx[from * m + j] = old + own;
                    }
                    if let Some(dw) = &mut dw {
                        let factor = at(if size_of::<T>() == 4 { 9 } else { 10 }, self.scale) as T;
                        dw[j] = at(11, 1.0) as T * dw[j] + factor * x * d;
                    }
                }
            }
        });
        Ok(())
    }
}

#[test]
fn single_mutations_are_caught() {
    let rows = || {
        let row =
            |scale| Rows { x: uniform([4, 3]), rows: integers(&[2, 0]), w: uniform([3]), out: out(), scale };
        [Sample::from(row(1.0)), Sample::from(row(0.75))]
    };
    for sample in rows() {
        check_sample(&sample).unwrap();
    }
    let (mut caught, mut missed, mut mutants) = (0, vec![], 0);
    for site in 0..SITES {
        for change in [Change::Negated, Change::Scaled, Change::Zero, Change::OneMore] {
            // Zero stays zero, a row index is whole, and the operator refuses an index before its gradient operator.
            let same = [3, 4].contains(&site) && change != Change::OneMore
                || [0, 5].contains(&site) && change == Change::Scaled
                || (site, change) == (5, Change::OneMore);
            if same {
                continue;
            }
            mutants += 1;
            MUTATION.set(Some((site, change)));
            match rows().iter().any(|sample| check_sample(sample).is_err()) {
                true => caught += 1,
                false => missed.push((site, change)),
            }
        }
    }
    MUTATION.set(None);
    eprintln!("{caught} of {mutants} mutations are caught; missed: {missed:?}");
    // All of them: 48 less the 9 that change nothing.
    assert!(missed.is_empty() && mutants == 39, "{caught} of {mutants}; missed: {missed:?}");
}
