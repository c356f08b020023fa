//! How plans are written for a cluster: as Ballista does it, and [`PairExec`] as JSON behind a word that Ballista's messages cannot begin with.

use std::sync::Arc;

use ballista_core::serde::BallistaPhysicalExtensionCodec;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};

use crate::store::PairExec;

/// As the first field of a message it would end a group that never began.
const PAIRS: &[u8] = b"dormouse pairs\n";

/// Clients, the scheduler and executors have this one.
#[derive(Debug, Default)]
pub struct Codec(BallistaPhysicalExtensionCodec);

impl PhysicalExtensionCodec for Codec {
    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(json) = bytes.strip_prefix(PAIRS) else {
            return self.0.try_decode(bytes, inputs, context, converter);
        };
        let spec = serde_json::from_slice(json).map_err(|error| DataFusionError::External(error.into()))?;
        Ok(Arc::new(PairExec::new(Arc::new(spec), inputs.to_vec())?))
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let Some(pairs) = node.downcast_ref::<PairExec>() else {
            return self.0.try_encode(node, bytes, converter);
        };
        bytes.extend_from_slice(PAIRS);
        serde_json::to_writer(bytes, pairs.spec.as_ref()).map_err(|error| DataFusionError::External(error.into()))
    }
}
