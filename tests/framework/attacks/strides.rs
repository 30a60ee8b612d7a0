//! Matrix products with strides out of bounds.

use autobwd::{
    Buf, Cx, Kernel, NoGrad, Result, Var, emit,
    op::{Mat, Strided},
    register_op,
};

use super::run;

const N: usize = 16;
const K: usize = 4096;

/// Products of the first rows of `x`.
#[register_op(grad = NoGrad, name = "attack_strides")]
pub(crate) struct Strides<V = Var> {
    /// `N * K` elements at least.
    #[input]
    pub x: V,
    /// Like `x`.
    #[output(like = x)]
    pub out: V,
    /// Which product.
    #[attr]
    pub which: i64,
}
fn matrix(data: &[f32], rows: usize, cols: usize, stride: usize) -> Strided<'_, f32> {
    Strided { mat: Mat { data, rows, cols, transposed: false }, stride }
}
impl Kernel for Strides<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (x, out) = (self.x.slice::<f32>()?, self.out.slice_mut::<f32>()?);
        out.fill(0.0);
        match self.which {
            // One row, so that any stride fits: of a factor, of the product, of both transposed.
            0 => {
                let (row, square) = (matrix(&x[..N], 1, N, usize::MAX), matrix(&x[..N * N], N, N, N));
                cx.product_strided(&mut out[..N], usize::MAX, false, row, square)
            }
            1 => {
                let row = matrix(&x[..K], 1, K, isize::MAX as usize + 1);
                cx.product_strided(&mut out[..1], usize::MAX, false, row, row.t())
            }
            2 => {
                let row = matrix(&x[..N], 1, N, usize::MAX);
                cx.product_strided(&mut out[..N * N], N, false, row.t(), row)
            }
            // Large enough to be split, into half of all rows and no rows, with no memory after them.
            3 => {
                let (rows, other) = (matrix(&x[..N * K], N, K, K), matrix(&x[..N * K], N, K, K).t());
                cx.product_strided(&mut out[..N * N], N, false, rows, other)
            }
            // These are out of bounds.
            4 => cx.product_strided(
                &mut out[..N * N],
                N,
                false,
                matrix(x, N, N, usize::MAX),
                matrix(x, N, N, N),
            ),
            5 => cx.product_strided(&mut out[..N], usize::MAX, false, matrix(x, N, N, N), matrix(x, N, N, N)),
            6 => cx.product_strided(out, N, false, matrix(&x[..3], 1, N, usize::MAX), matrix(x, N, N, N)),
            _ => cx.product_strided(out, N, false, matrix(x, 1, N, N - 1), matrix(x, N, N, N)),
        }
    }
}

#[test]
fn stride_that_leads_nowhere_is_not_followed() {
    let x = vec![0.5; N * K];
    let product = |which| run(&x, |x| emit(Strides { x: x.into(), out: autobwd::New, which }).out);
    let sums = [(0, N, N), (1, 1, K), (2, N * N, 1), (3, N * N, K)];
    for (which, elements, terms) in sums {
        let out = product(which).unwrap();
        let expected = |i| if i < elements { 0.25 * terms as f64 } else { 0.0 };
        assert!(out.iter().enumerate().all(|(i, out)| *out == expected(i)), "{which}: {:?}", &out[..4]);
    }
    for which in 4..8 {
        let e = product(which).unwrap_err();
        assert!(e.to_string().contains("no product of"), "{which}: {e}");
    }
}
