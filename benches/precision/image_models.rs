//! Networks that classify images, of 112 × 112 pixels.

use autobwd::{Builder, DType, Expr, New, Result, Scope, Tensor, emit};
use autobwd_benches::workload::{integers, numbers};
use autobwd_ops::{
    Math,
    activation::HardSigmoid,
    nn::{BatchNorm, Conv2d, Linear},
};

/// Random images and labels, as values that the program keeps, and a seed for each layer.
struct ImageNetwork<'n> {
    net: &'n Builder,
    images: Expr,
    labels: Expr,
    seed: i32,
}

impl<'n> ImageNetwork<'n> {
    fn new(net: &'n Builder, scope: &mut Scope) -> Result<ImageNetwork<'n>> {
        let (batch, size) = (8, 112);
        let pixels = numbers(1, batch * 3 * size * size, 1.0);
        scope.set("images", Tensor::from_vec([batch, 3, size, size], pixels)?);
        scope.set("labels", Tensor::from_vec([batch, 1], integers(2, batch, 1000))?);
        let images = net.persistable("images", DType::F32, &[batch, 3, size, size], Expr::clone);
        let labels = net.persistable("labels", DType::I64, &[batch, 1], Expr::clone);
        Ok(ImageNetwork { net, images, labels, seed: 0 })
    }

    fn seed(&mut self) -> i32 {
        self.seed += 1;
        self.seed
    }

    /// A convolution of windows of `size` pixels and a batch normalisation.
    fn conv(&mut self, x: &Expr, [inputs, outputs, groups]: [usize; 3], size: usize, stride: i32) -> Expr {
        let conv = Conv2d::builder(self.net, inputs, outputs, size).stride(stride).padding(size as i32 / 2);
        let y = conv.groups(groups as i32).seed(self.seed()).build().forward(x);
        BatchNorm::builder(self.net, outputs).build().forward(&y)
    }

    fn linear(&mut self, x: &Expr, inputs: usize, outputs: usize) -> Expr {
        Linear::builder(self.net, inputs, outputs).seed(self.seed()).build().forward(x)
    }

    /// Weights of channels by a network of two layers: He et al., "Squeeze-and-Excitation Networks", 2018.
    fn excited(&mut self, x: &Expr, channels: usize, squeezed: usize) -> Expr {
        let mean = x.mean_over(&[2, 3]);
        let hidden = self.linear(&mean, channels, squeezed).relu();
        let scores = self.linear(&hidden, squeezed, channels);
        let weights = emit(HardSigmoid { x: (&scores).into(), out: New, slope: 1.0 / 6.0, offset: 0.5 }).out;
        x * weights.reshape(&[-1, channels as i32, 1, 1])
    }

    fn loss(&mut self, features: &Expr, channels: usize) -> Expr {
        self.linear(features, channels, 1000).cross_entropy(&self.labels).mean()
    }
}

/// The residual network of He et al., "Deep Residual Learning for Image Recognition", 2016.
pub(crate) fn resnet18(net: &Builder, scope: &mut Scope) -> Result<Expr> {
    let mut net = ImageNetwork::new(net, scope)?;
    let images = net.images.clone();
    let mut x = net.conv(&images, [3, 64, 1], 7, 2).relu().max_pool2d(3, 2);
    let mut channels = 64;
    for (stage, outputs) in [64, 128, 256, 512].into_iter().enumerate() {
        for block in 0..2 {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let y = net.conv(&x, [channels, outputs, 1], 3, stride).relu();
            let y = net.conv(&y, [outputs, outputs, 1], 3, 1);
            let shortcut =
                if channels == outputs { x } else { net.conv(&x, [channels, outputs, 1], 1, stride) };
            (x, channels) = ((&y + &shortcut).relu(), outputs);
        }
    }
    Ok(net.loss(&x.mean_over(&[2, 3]), 512))
}

/// A block of MobileNetV3: window, channels inside, channels, channels of its excitation or 0, whether its activation is
/// `hard_swish`, stride.
type MobileBlock = (usize, usize, usize, usize, bool, i32);

/// The larger network of Howard et al., "Searching for MobileNetV3", 2019, table 1.
pub(crate) fn mobilenet_v3(net: &Builder, scope: &mut Scope) -> Result<Expr> {
    const BLOCKS: [MobileBlock; 15] = [
        (3, 16, 16, 0, false, 1),
        (3, 64, 24, 0, false, 2),
        (3, 72, 24, 0, false, 1),
        (5, 72, 40, 24, false, 2),
        (5, 120, 40, 32, false, 1),
        (5, 120, 40, 32, false, 1),
        (3, 240, 80, 0, true, 2),
        (3, 200, 80, 0, true, 1),
        (3, 184, 80, 0, true, 1),
        (3, 184, 80, 0, true, 1),
        (3, 480, 112, 120, true, 1),
        (3, 672, 112, 168, true, 1),
        (5, 672, 160, 168, true, 2),
        (5, 960, 160, 240, true, 1),
        (5, 960, 160, 240, true, 1),
    ];
    let mut net = ImageNetwork::new(net, scope)?;
    let images = net.images.clone();
    let mut x = net.conv(&images, [3, 16, 1], 3, 2).hard_swish();
    let mut channels = 16;
    for (size, inside, outputs, squeezed, swish, stride) in BLOCKS {
        let activation = |x: Expr| if swish { x.hard_swish() } else { x.relu() };
        let wide = match inside == channels {
            true => x.clone(),
            false => activation(net.conv(&x, [channels, inside, 1], 1, 1)),
        };
        let mut y = activation(net.conv(&wide, [inside, inside, inside], size, stride));
        if squeezed > 0 {
            y = net.excited(&y, inside, squeezed);
        }
        let y = net.conv(&y, [inside, outputs, 1], 1, 1);
        x = if stride == 1 && channels == outputs { &x + &y } else { y };
        channels = outputs;
    }
    let features = net.conv(&x, [160, 960, 1], 1, 1).hard_swish().mean_over(&[2, 3]);
    let features = net.linear(&features, 960, 1280).hard_swish();
    Ok(net.loss(&features, 1280))
}
