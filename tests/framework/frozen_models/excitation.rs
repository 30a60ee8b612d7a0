//! Squeeze and excitation: means of pixels weigh the channels of images.

use autobwd::{Builder, Result};
use autobwd_ops::{Math, nn::Conv2d};

use super::{conv, frozen_for_all, images};

#[test]
fn means_of_pixels_weigh_channels() -> Result<()> {
    for channels in [16, 10, 40] {
        let net = Builder::new();
        let x = conv(&images(&net, 3), channels, 3).hard_swish();
        let mean = x.mean_keepdim(&[2, 3]);
        let gate = conv(&conv(&mean, 4, 1).relu(), channels, 1).sigmoid();
        let y = conv(&(&x * &gate), 8, 3);
        let flat = y.mean_over(&[-1, -2]);
        let back = y.mean_over(&[2, 3]).unsqueeze(&[2, 3]);
        let operators = frozen_for_all(&net, &[&flat, &(&y * &back), &y.mean_over(&[1, 2])], 3)?;
        assert!(operators.iter().filter(|ty| *ty == "blocked_pool2d").count() >= 2, "{operators:?}");
    }
    Ok(())
}

#[test]
fn scales_of_channels_become_part_of_convolutions() -> Result<()> {
    for (channels, groups, size) in [(16, 1, 1), (10, 1, 3), (40, 1, 1), (32, 2, 3)] {
        let net = Builder::new();
        let x = conv(&images(&net, 3), channels, 5).hard_swish();
        let gate = conv(&x.mean_keepdim(&[2, 3]), channels, 1).sigmoid();
        for scaled in [&x * &gate, &gate * &x] {
            let conv = Conv2d::builder(&net, channels, 32, size).groups(groups).padding(size as i32 / 2);
            let y = conv.build().forward(&scaled).relu();
            let operators = frozen_for_all(&net, &[&y], 3)?;
            assert!(!operators.contains(&"elementwise_mul".into()), "{operators:?}");
            // A product that is read elsewhere stays.
            let operators = frozen_for_all(&net, &[&y, &scaled], 3)?;
            assert!(operators.contains(&"elementwise_mul".into()), "{operators:?}");
        }
    }
    Ok(())
}
