//! Modified Bessel functions of the first kind, by the Chebyshev series of Cephes (Moshier, 1989).

use autobwd::{Derived, Float, check::*};

use crate::unary::unary_formula;

/// Where the series for large numbers begin.
const FAR: f64 = 8.0;

/// A Chebyshev series, from the last term, by the recurrence of Clenshaw (1955). The first term counts half.
#[inline(always)]
fn chebyshev<F: Float, const N: usize>(t: F, series: &[f64; N]) -> F {
    let (mut b0, mut b1, mut b2) = (F::from(series[0]), F::from(0.0), F::from(0.0));
    for term in &series[1..] {
        b2 = b1;
        b1 = b0;
        b0 = t * b1 - b2 + *term;
    }
    (b0 - b2) * 0.5
}

/// One series on `0..=8`, and another one beyond, which is divided by `√size`.
#[inline(always)]
fn series<F: Float, const N: usize>(size: F, inner: &[f64; N], outer: &[f64; 25]) -> (F, F) {
    let far = F::from(FAR);
    // The series that is not selected gets a number of its interval, so that it is finite.
    let (small, large) = (size.min(far), size.max(far));
    (chebyshev(small * 0.5 - 2.0, inner), chebyshev(F::from(32.0) / large - 2.0, outer) / large.sqrt())
}

/// `exp(-|x|) I0(x)`
#[inline(always)]
fn scaled_i0<F: Float>(x: F) -> F {
    let size = x.abs();
    let (near, far) = series(size, &I0_INNER, &I0_OUTER);
    F::select(size.gt(F::from(FAR)), far, near)
}

/// `exp(-|x|) I1(x) / x`
#[inline(always)]
fn scaled_i1_ratio<F: Float>(x: F) -> F {
    let size = x.abs();
    let (near, far) = series(size, &I1_INNER, &I1_OUTER);
    F::select(size.gt(F::from(FAR)), far / size, near)
}

/// 1, -1 or 0.
#[inline(always)]
fn sign<F: Float>(x: F) -> F {
    let (zero, one) = (F::from(0.0), F::from(1.0));
    F::select(x.gt(zero), one, F::select(zero.gt(x), -one, zero))
}

unary_formula!(
    /// Modified Bessel function of order 0: `out = I0(x)`.
    I0(grad = I0Grad), slots("x", "out"), |x| scaled_i0(x) * x.abs().exp(),
    samples [between(-3.0, 3.0, [2, 3]), given([4], [0.0, 7.5, -8.5, 12.0]), uniform([])],
    /// `dx = dout * I1(x)`.
    I0Grad(grad = Derived), |x, dout| dout * scaled_i1_ratio(x) * x * x.abs().exp()
);

unary_formula!(
    /// Scaled modified Bessel function of order 0: `out = exp(-|x|) * I0(x)`. At 0, the gradient is 0.
    I0e(grad = I0eGrad), slots("x", "out"), |x| scaled_i0(x),
    samples [
        away_from(0.0, [2, 3]),
        given([4], [2.5, 7.5, -8.5, 1e6]),
        given([], [0.0]) => not_a_derivative("it has a kink at 0"),
    ],
    /// `dx = dout * (exp(-|x|) * I1(x) - sign(x) * exp(-|x|) * I0(x))`.
    I0eGrad(grad = Derived), |x, dout| dout * (scaled_i1_ratio(x) * x - sign(x) * scaled_i0(x))
);

unary_formula!(
    /// Modified Bessel function of order 1: `out = I1(x)`.
    I1(grad = I1Grad), slots("x", "out"), |x| scaled_i1_ratio(x) * x * x.abs().exp(),
    samples [between(-3.0, 3.0, [2, 3]), given([4], [0.0, 7.5, -8.5, 12.0]), uniform([])],
    /// `dx = dout * (I0(x) - I1(x) / x)`, with 1/2 for the quotient at 0.
    I1Grad(grad = Derived), |x, dout| dout * (scaled_i0(x) - scaled_i1_ratio(x)) * x.abs().exp()
);

unary_formula!(
    /// Scaled modified Bessel function of order 1: `out = exp(-|x|) * I1(x)`.
    I1e(grad = I1eGrad), slots("x", "out"), |x| scaled_i1_ratio(x) * x,
    samples [away_from(0.0, [2, 3]), given([4], [2.5, 7.5, -8.5, 1e6]), away_from(0.0, [])],
    /// `dx = dout * exp(-|x|) * (I0(x) - I1(x) / x - sign(x) * I1(x))`, with 1/2 for the quotient at 0.
    I1eGrad(grad = Derived), |x, dout| {
        let ratio = scaled_i1_ratio(x);
        dout * (scaled_i0(x) - ratio - ratio * x.abs())
    }
);

/// The function `exp(-x) I0(x)` on `0..=8`, in `t = x / 2 - 2`.
const I0_INNER: [f64; 30] = [
    -4.4153416464793395e-18,
    3.3307945188222384e-17,
    -2.431279846547955e-16,
    1.715391285555133e-15,
    -1.1685332877993451e-14,
    7.676185498604936e-14,
    -4.856446783111929e-13,
    2.95505266312964e-12,
    -1.726826291441556e-11,
    9.675809035373237e-11,
    -5.189795601635263e-10,
    2.6598237246823866e-9,
    -1.300025009986248e-8,
    6.046995022541919e-8,
    -2.670793853940612e-7,
    1.1173875391201037e-6,
    -4.4167383584587505e-6,
    1.6448448070728896e-5,
    -5.754195010082104e-5,
    0.00018850288509584165,
    -0.0005763755745385824,
    0.0016394756169413357,
    -0.004324309995050576,
    0.010546460394594998,
    -0.02373741480589947,
    0.04930528423967071,
    -0.09490109704804764,
    0.17162090152220877,
    -0.3046826723431984,
    0.6767952744094761,
];

/// The function `exp(-x) √x I0(x)` from 8 on, in `t = 32 / x - 2`.
const I0_OUTER: [f64; 25] = [
    -7.233180487874754e-18,
    -4.830504485944182e-18,
    4.46562142029676e-17,
    3.461222867697461e-17,
    -2.8276239805165836e-16,
    -3.425485619677219e-16,
    1.7725601330565263e-15,
    3.8116806693526224e-15,
    -9.554846698828307e-15,
    -4.150569347287222e-14,
    1.54008621752141e-14,
    3.8527783827421426e-13,
    7.180124451383666e-13,
    -1.7941785315068062e-12,
    -1.3215811840447713e-11,
    -3.1499165279632416e-11,
    1.1889147107846439e-11,
    4.94060238822497e-10,
    3.3962320257083865e-9,
    2.266668990498178e-8,
    2.0489185894690638e-7,
    2.8913705208347567e-6,
    6.889758346916825e-5,
    0.0033691164782556943,
    0.8044904110141088,
];

/// The function `exp(-x) I1(x) / x` on `0..=8`, in `t = x / 2 - 2`.
const I1_INNER: [f64; 29] = [
    2.7779141127610464e-18,
    -2.111421214358166e-17,
    1.5536319577362005e-16,
    -1.1055969477353862e-15,
    7.600684294735408e-15,
    -5.042185504727912e-14,
    3.223793365945575e-13,
    -1.9839743977649436e-12,
    1.1736186298890901e-11,
    -6.663489723502027e-11,
    3.625590281552117e-10,
    -1.8872497517228294e-9,
    9.381537386495773e-9,
    -4.445059128796328e-8,
    2.0032947535521353e-7,
    -8.568720264695455e-7,
    3.4702513081376785e-6,
    -1.3273163656039436e-5,
    4.781565107550054e-5,
    -0.00016176081582589674,
    0.0005122859561685758,
    -0.0015135724506312532,
    0.004156422944312888,
    -0.010564084894626197,
    0.024726449030626516,
    -0.05294598120809499,
    0.1026436586898471,
    -0.17641651835783406,
    0.25258718644363365,
];

/// The function `exp(-x) √x I1(x)` from 8 on, in `t = 32 / x - 2`.
const I1_OUTER: [f64; 25] = [
    7.517296310842105e-18,
    4.414348323071708e-18,
    -4.6503053684893586e-17,
    -3.209525921993424e-17,
    2.96262899764595e-16,
    3.3082023109209285e-16,
    -1.8803547755107825e-15,
    -3.8144030724370075e-15,
    1.0420276984128802e-14,
    4.272440016711951e-14,
    -2.1015418427726643e-14,
    -4.0835511110921974e-13,
    -7.198551776245908e-13,
    2.0356285441470896e-12,
    1.4125807436613782e-11,
    3.2526035830154884e-11,
    -1.8974958123505413e-11,
    -5.589743462196584e-10,
    -3.835380385964237e-9,
    -2.6314688468895196e-8,
    -2.512236237870209e-7,
    -3.882564808877691e-6,
    -0.00011058893876262371,
    -0.009761097491361469,
    0.7785762350182801,
];
