//! Filters of convolutions of images in blocks.

use autobwd::{Result, Tensor, op::CHANNEL_BLOCK};

use super::{
    Frozen,
    convolutions::{ChannelMap, ConstantConvolution},
};
use crate::channel_blocks::filters_at_points;

/// The most groups of channels of a block.
const LARGEST: usize = 1 << 28;

/// Filters `[filters, channels of a group, height, width]`, times the scales of a map.
pub(super) struct Filters {
    elements: Vec<f32>,
    dims: [usize; 4],
}

/// The groups of blocks of channels and filters.
#[derive(Clone, Copy)]
pub(super) struct BlockGroups {
    /// Groups of channels.
    groups: usize,
    /// Groups of blocks.
    pub(super) blocks: usize,
}

impl BlockGroups {
    /// How filters of so many channels in groups are divided into blocks, if they can be: whole blocks for each group, or
    /// several groups for a block.
    pub(super) fn of(groups: usize, [filters, share]: [usize; 2]) -> Option<BlockGroups> {
        let each = filters / groups.max(1);
        let whole = |n: usize| n.is_multiple_of(CHANNEL_BLOCK);
        if groups == 1 || whole(each) && whole(share) {
            return Some(BlockGroups { groups, blocks: groups });
        }
        let fits = each == share && share > 0 && CHANNEL_BLOCK.is_multiple_of(share);
        fits.then(|| BlockGroups { groups, blocks: filters.div_ceil(CHANNEL_BLOCK) })
    }
}

impl Filters {
    /// Filters times the scale of each.
    pub(super) fn scaled(
        frozen: &Frozen<'_>,
        conv: &ConstantConvolution,
        map: &ChannelMap,
    ) -> Result<Filters> {
        let each = conv.dims[1..].iter().product();
        let mut elements = frozen.expect(conv.filter)?.slice::<f32>()?.to_vec();
        for (filter, scale) in elements.chunks_mut(each).zip(&map.scale) {
            filter.iter_mut().for_each(|x| *x = (f64::from(*x) * scale) as f32);
        }
        Ok(Filters { elements, dims: conv.dims })
    }

    /// A filter of one element for each channel: the scales of a map.
    pub(super) fn of_scales(map: &ChannelMap) -> Filters {
        let elements: Vec<f32> = map.scale.iter().map(|scale| *scale as f32).collect();
        Filters { dims: [elements.len(), 1, 1, 1], elements }
    }

    pub(super) fn dims(&self) -> [usize; 4] {
        self.dims
    }

    /// `[blocks of filters, blocks of channels, height, width, 16, 16]`, or with channels of their own,
    /// `[blocks of filters, channels, height, width, 1, 16]`.
    pub(super) fn packed(
        &self,
        BlockGroups { groups, blocks }: BlockGroups,
        is_single: bool,
    ) -> Result<Tensor> {
        let [filters, share, height, width] = self.dims;
        let depth = if is_single { 1 } else { CHANNEL_BLOCK };
        let each = filters.div_ceil(CHANNEL_BLOCK) * CHANNEL_BLOCK / blocks;
        let channels = if blocks == groups { share.div_ceil(depth) } else { 1 };
        let dims = [filters.div_ceil(CHANNEL_BLOCK), channels, height, width, depth, CHANNEL_BLOCK];
        let mut packed = vec![0.0; dims.iter().product::<usize>().min(LARGEST)];
        for (filter, elements) in self.elements.chunks(share * height * width).enumerate() {
            let group = filter / (filters / groups);
            // The first channel of the group in the blocks of the filter.
            let first = group * share - filter / each * channels * depth;
            let (block, lane) = (filter / CHANNEL_BLOCK, filter % CHANNEL_BLOCK);
            for (channel, elements) in elements.chunks(height * width).enumerate() {
                let channel = first + channel;
                let start = (block * channels + channel / depth) * height * width;
                for (element, x) in elements.iter().enumerate() {
                    packed[((start + element) * depth + channel % depth) * CHANNEL_BLOCK + lane] = *x;
                }
            }
        }
        Tensor::from_vec(dims, packed)
    }

    /// Filters of single channels, `[blocks, height, width, 16]`.
    pub(super) fn packed_depthwise(&self) -> Result<Tensor> {
        let [filters, _, height, width] = self.dims;
        let blocks = filters.div_ceil(CHANNEL_BLOCK);
        let mut packed = vec![0.0; blocks * height * width * CHANNEL_BLOCK];
        for (filter, elements) in self.elements.chunks(height * width).enumerate() {
            let (block, lane) = (filter / CHANNEL_BLOCK, filter % CHANNEL_BLOCK);
            for (element, x) in elements.iter().enumerate() {
                packed[(block * height * width + element) * CHANNEL_BLOCK + lane] = *x;
            }
        }
        Tensor::from_vec([blocks, height, width, CHANNEL_BLOCK], packed)
    }

    /// Values at the points of Winograd's algorithm, `[36, blocks of filters, channels of all blocks, 16]`.
    pub(super) fn at_points(&self) -> Result<Tensor> {
        let [filters, channels, _, _] = self.dims;
        let blocks = [filters, channels].map(|n| n.div_ceil(CHANNEL_BLOCK));
        let values = filters_at_points(&self.elements, [filters, channels]);
        Tensor::from_vec([36, blocks[0], blocks[1] * CHANNEL_BLOCK, CHANNEL_BLOCK], values)
    }
}

/// The biases of a map, with zeros for the rest of the last block.
pub(super) fn packed_bias(map: &ChannelMap) -> Result<Tensor> {
    let mut bias: Vec<f32> = map.bias.iter().map(|bias| *bias as f32).collect();
    bias.resize(bias.len().next_multiple_of(CHANNEL_BLOCK), 0.0);
    Tensor::from_vec([bias.len()], bias)
}
